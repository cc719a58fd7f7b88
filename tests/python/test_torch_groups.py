"""Tests herring.torch with groups of ranks, in jobs of four workers."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

from batches import herring_run, outcomes
from torch_cases import GROUP_CASES

LAYOUTS = {
    "one-node": ["-n", "4"],
    "two-nodes": ["-n", "4", "--nodes", "2"],
}


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    return outcomes([*herring_run(*LAYOUTS[layout]), "-m", "torch_cases"], list(GROUP_CASES))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", GROUP_CASES)
def test_case(layout: str, case: str) -> None:
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)
