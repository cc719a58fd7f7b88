"""herring.torch in real jobs: every case of `torch_cases`, on several layouts."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

from batches import herring_run, outcomes
from torch_cases import CASES

LAYOUTS = {
    "one-node": ["-n", "3"],
    "dedicated-servers": ["-n", "4", "--nodes", "2", "--servers", "2"],
    "colocated-servers": ["-n", "3", "--nodes", "3"],
}


@functools.cache
def run_all(layout: str) -> dict[str, str]:
    return outcomes([*herring_run(*LAYOUTS[layout]), "-m", "torch_cases"], list(CASES))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(450)
def test_case(layout: str, case: str) -> None:
    if text := run_all(layout)[case]:
        pytest.fail(text, pytrace=False)
