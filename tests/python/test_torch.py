"""herring.torch in real jobs: every case of `torch_cases`, on several layouts."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from torch_cases import CASES

HERE = Path(__file__).parent
LAYOUTS = {
    "one-node": ["-n", "3"],
    "dedicated-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated-servers": ["-n", "3", "--nodes", "3"],
}


def run(
    options: Sequence[str], cases: Sequence[str]
) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """Runs cases in one job with these options; which have passed, and how the job ended."""
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "passed")
        report.touch()
        job = subprocess.run(
            [
                *(sys.executable, "-m", "herring.launch.cli", "run", *options),
                *("--timeout", "200", "--grace", "1"),
                *("--", sys.executable, "-m", "torch_cases", "--report", str(report), *cases),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=215,
            check=False,
        )
        return report.read_text().split(), job


@functools.cache
def run_all(layout: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """All cases in one job, which saves most of the time; it stops at the first that fails."""
    return run(LAYOUTS[layout], list(CASES))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(450)
def test_case(layout: str, case: str) -> None:
    passed, job = run_all(layout)
    if case in passed:
        return
    first = case == list(CASES)[len(passed)]
    if not first:
        passed, job = run(LAYOUTS[layout], [case])
        if case in passed and job.returncode == 0:
            return
    pytest.fail(f"exit status {job.returncode}\n{job.stdout[-6000:]}", pytrace=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.timeout(450)
def test_jobs_end_well(layout: str) -> None:
    passed, job = run_all(layout)
    if len(passed) < len(CASES):
        pytest.skip("a case has failed")
    assert job.returncode == 0, job.stdout[-6000:]
