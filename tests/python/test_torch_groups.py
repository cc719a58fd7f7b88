"""herring.torch with groups of ranks, in jobs of four workers."""

from __future__ import annotations

import functools
import subprocess

import pytest

pytest.importorskip("torch")

from test_torch import run
from torch_cases import GROUP_CASES

LAYOUTS = {
    "one-node": ["-n", "4"],
    "two-nodes": ["-n", "4", "--nodes", "2"],
}


@functools.cache
def run_all(layout: str) -> tuple[list[str], subprocess.CompletedProcess[str]]:
    """All cases in one job; it stops at the first that fails."""
    return run(LAYOUTS[layout], list(GROUP_CASES))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", GROUP_CASES)
@pytest.mark.timeout(450)
def test_case(layout: str, case: str) -> None:
    passed, job = run_all(layout)
    if case in passed:
        return
    if case != list(GROUP_CASES)[len(passed)]:
        passed, job = run(LAYOUTS[layout], [case])
        if case in passed and job.returncode == 0:
            return
    pytest.fail(f"exit status {job.returncode}\n{job.stdout[-6000:]}", pytrace=False)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.timeout(450)
def test_jobs_end_well(layout: str) -> None:
    passed, job = run_all(layout)
    if len(passed) < len(GROUP_CASES):
        pytest.skip("a case has failed")
    assert job.returncode == 0, job.stdout[-6000:]
