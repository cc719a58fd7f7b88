"""Runs small scripts as real jobs for the tests in this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import warm

LAYOUTS = {
    "alone": ["-n", "1"],
    "one-node": ["-n", "3"],
    "colocated-servers": ["-n", "3", "--nodes", "3"],
    "dedicated-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "uneven-nodes": ["-n", "5", "--nodes", "2", "--servers", "1"],
}

PROGRAMS = Path(__file__).parents[1] / "python" / "programs"

# Every short script begins with these imports; programs in files have their own.
PREAMBLE = f"""
import hashlib, os, signal, sys, time
import numpy as np
import herring
sys.path.append({str(PROGRAMS)!r})
from support import raises
"""


def program(name: str, *arguments: str, folder: Path = PROGRAMS) -> list[str]:
    """Returns the words that follow `python` to run `<name>.py` of a folder with `arguments`."""
    path = folder / f"{name}.py"
    assert path.is_file(), path
    return [str(path), *arguments]


def run_job(
    layout: list[str],
    script: str | Sequence[str],
    timeout: float = 300,
    grace: float = 1,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a script on every rank of a job.

    Args:
      layout: the options of `herring run` that place workers and servers.
      script: the text of a short script, or what `program` returns.
      timeout: seconds after which the launcher ends the job. It only bounds a hang, however slow
        the machine is: a test of a timeout of Herring's sets that one.
      grace: seconds within which the other ranks must end after one has failed.
      environment: additional environment variables for the script. FOLDER, in which processes tell
        each other what they have done (programs/support.py), is a new one unless it is given.
    """
    if "FOLDER" not in environment:
        with tempfile.TemporaryDirectory() as folder:
            return run_job(layout, script, timeout, grace, FOLDER=folder, **environment)
    if isinstance(script, str):
        script = ["-c", PREAMBLE + textwrap.dedent(script)]
    return warm.run(
        [
            *(sys.executable, "-m", "herring.command.cli", "run", *layout),
            *("--timeout", str(timeout), "--grace", str(grace), "--"),
            *(sys.executable, *script),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout + 60,
    )


def expect_success(job: subprocess.CompletedProcess[str]) -> str:
    """Returns the output of a job, which must have succeeded."""
    assert job.returncode == 0, job.stdout[-6000:]
    return job.stdout


def expect_known(
    layout: list[str],
    script: str | Sequence[str],
    victim: int,
    survivors: int,
    **environment: str,
) -> None:
    """Fails unless all survivors learn that a worker was killed.

    All timeouts are longer than the job may take, so only news of the death ends a wait.

    Args:
      layout: the options of `herring run` that place workers and servers.
      script: runs on every rank. Rank `VICTIM` kills itself; the others print "has learned of it".
        It is a text, or what `program` returns without arguments.
      victim: the rank that dies.
      survivors: how many ranks must learn of the death.
      environment: additional environment variables for the script.
    """
    # A rank that knows stays until all know; otherwise others might first learn that it has left.
    ranks = {*range(survivors + 1)} - {victim}
    stay = f"""
import os, support
support.stay_until_all_know(int(os.environ["HERRING_RANK"]), {ranks})
os._exit(0)
"""
    if not isinstance(script, str):
        (path,) = script
        script = f"import runpy\nrunpy.run_path({path!r}, run_name='__main__')"
    job = run_job(
        [*layout, "--keep-going"],
        textwrap.dedent(script) + stay,
        VICTIM=str(victim),
        HERRING_TIMEOUT="600",
        HERRING_HEARTBEAT_TIMEOUT="600",
        **environment,
    )
    assert job.stdout.count("has learned of it") == survivors, job.stdout[-4000:]
