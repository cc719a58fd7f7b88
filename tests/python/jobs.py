"""Runs small scripts as real jobs, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

LAYOUTS = {
    "alone": ["-n", "1"],
    "one-node": ["-n", "3"],
    "colocated-servers": ["-n", "3", "--nodes", "3"],
    "dedicated-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "uneven-nodes": ["-n", "5", "--nodes", "2", "--servers", "1"],
}

PREAMBLE = """
import hashlib, os, signal, sys, time
import numpy as np
import herring
"""


def run_job(
    layout: list[str], script: str, timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `script` on every rank of a job laid out by `herring run` options."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "herring.launch.cli", "run", *layout),
            *("--timeout", str(timeout), "--grace", "1", "--"),
            *(sys.executable, "-c", PREAMBLE + textwrap.dedent(script)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout + 10,
        check=False,
    )


def expect_success(job: subprocess.CompletedProcess[str]) -> str:
    """The job's output, after it has ended well."""
    assert job.returncode == 0, job.stdout[-6000:]
    return job.stdout
