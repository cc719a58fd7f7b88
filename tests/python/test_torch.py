"""Tests herring.torch in real jobs: every case of `torch_cases`, on several layouts."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

from batches import herring_run, outcomes
from jobs import expect_success, program, run_job
from torch_cases import CASES

# Some ranks of "mixed-nodes" share a node and others do not; make test-thorough runs the others.
LAYOUTS = {
    "mixed-nodes": ["-n", "3", "--nodes", "2"],
    "one-node": ["-n", "3"],
    "dedicated-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated-servers": ["-n", "3", "--nodes", "3"],
}
# Compiling takes half of the time and does not depend on the layout, so one layout is enough.
ANYWHERE = [case for case in CASES if "compiled" in case]


def cases_of(layout: str) -> list[str]:
    return [case for case in CASES if layout == "dedicated-servers" or case not in ANYWHERE]


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    command = [*herring_run(*LAYOUTS[layout]), "-m", "torch_cases"]
    return outcomes(command, cases_of(layout))


@pytest.mark.parametrize(
    ("layout", "case"), [(layout, case) for layout in LAYOUTS for case in cases_of(layout)]
)
def test_case(layout: str, case: str) -> None:
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)


def test_tensors_lie_where_they_belong_whatever_the_default_device() -> None:
    expect_success(run_job(["-n", "2", "--nodes", "2"], program("torch_default_device")))
