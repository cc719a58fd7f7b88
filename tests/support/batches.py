"""Runs many cases in one job, one after the other, because starting processes takes most time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import warm

HERE = Path(__file__).parent
RUNS_IN_TURN = HERE / "in_turn.py"
CASES = HERE.parent / "python"  # where torch_cases and the like are


def herring_run(*options: str, seconds: int = 1200) -> list[str]:
    """Returns the beginning of a command that runs Python on every rank of a job."""
    launcher = [sys.executable, "-m", "herring.command.cli", "run", *options]
    return [*launcher, "--timeout", str(seconds), "--grace", "1", "--", sys.executable]


def outcomes(
    command: Sequence[str],
    cases: Sequence[str],
    *,
    name_in: Callable[[str], str] = str.strip,
    seconds: int = 1300,
    **environment: str,
) -> dict[str, str]:
    """Runs the cases, and returns "" for each that passed or the job's output where one failed.

    After a failure, another job continues with the cases that follow.

    Args:
      command: the command that runs the cases named after its options. With ``--report FILE`` it
        appends a line to the file for each case that has passed.
      cases: the names of the cases.
      name_in: finds the name of a case in a line of the report.
      seconds: the time limit of a job, which only bounds a hang.
      environment: additional environment variables.
    """
    paths = [str(HERE), str(CASES), *filter(None, [os.environ.get("PYTHONPATH")])]
    found: dict[str, str] = {}
    left = list(cases)
    while left:
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "passed")
            report.touch()
            job = warm.run(
                [*command, "--report", str(report), *left],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds,
                check=False,
            )
            passed = [name_in(line) for line in report.read_text().splitlines()]
        found.update(dict.fromkeys(passed, ""))
        left = left[len(passed) :]
        text = f"exit status {job.returncode}\n{_shortened(job.stdout)}"
        if left:
            found[left.pop(0)] = text
        elif job.returncode != 0:
            found[passed[-1]] = text
    return found


def _shortened(output: str) -> str:
    """Returns the first traceback and the end: later errors are often caused by the first one."""
    end = output[-6000:]
    first = output.find("Traceback")
    if first < 0 or first >= len(output) - len(end):
        return end
    return f"{output[first : first + 6000]}\n...\n{end}"
