"""Runs small scripts as real jobs for the tests in this folder."""

from __future__ import annotations

import os
import re
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

PROGRAMS = Path(__file__).parent / "programs"

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
    timeout: float = 60,
    grace: float = 1,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a script on every rank of a job.

    Args:
      layout: the options of `herring run` that place workers and servers.
      script: the text of a short script, or what `program` returns.
      timeout: seconds after which the launcher ends the job.
      grace: seconds within which the other ranks must end after one has failed.
      environment: additional environment variables for the script.
    """
    if isinstance(script, str):
        script = ["-c", PREAMBLE + textwrap.dedent(script)]
    return warm.run(
        [
            *(sys.executable, "-m", "herring.launch.cli", "run", *layout),
            *("--timeout", str(timeout), "--grace", str(grace), "--"),
            *(sys.executable, *script),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout + 10,
    )


def expect_success(job: subprocess.CompletedProcess[str]) -> str:
    """Returns the output of a job, which must have succeeded."""
    assert job.returncode == 0, job.stdout[-6000:]
    return job.stdout


def seconds_until_known(
    layout: list[str],
    script: str | Sequence[str],
    victim: int,
    survivors: int,
    **environment: str,
) -> tuple[float, str]:
    """Measures how many seconds the slowest survivor needs to learn that a worker was killed.

    Args:
      layout: the options of `herring run` that place workers and servers.
      script: runs on every rank. Rank `VICTIM` kills itself; the others print "learned in T s".
        It is a text, or what `program` returns without arguments.
      victim: the rank that dies.
      survivors: how many ranks must learn of the death.
      environment: additional environment variables for the script.

    Returns:
      The seconds, and the output of the job.
    """
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    # A rank that knows stays until all know; otherwise others might first learn that it has left.
    stay = f"""
open(os.path.join(os.environ["LEARNED"], str(os.getpid())), "w").close()
end = time.monotonic() + 5
while len(os.listdir(os.environ["LEARNED"])) < {survivors} and time.monotonic() < end:
    time.sleep(0.01)
"""
    if not isinstance(script, str):
        (path,) = script
        script = f"import runpy\nrunpy.run_path({path!r}, run_name='__main__')"
    with tempfile.TemporaryDirectory() as learned:
        job = run_job(
            layout,
            deaf + textwrap.dedent(script) + stay,
            grace=8,
            VICTIM=str(victim),
            LEARNED=learned,
            **environment,
        )
    times = [float(t) for t in re.findall(r"learned in ([\d.]+) s", job.stdout)]
    assert len(times) == survivors, job.stdout[-4000:]
    return max(times), job.stdout
