"""Every case of `torch_cases` with its tensors on a GPU: on the stand-in for CUDA's driver."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

from batches import herring_run, outcomes
from gpus import FOLDER, TORCH_ENVIRONMENT
from torch_cases import CASES

# What a tensor counts is not to be seen there; and compiling does not care where tensors are.
HERE = [case for case in CASES if "compiled" not in case and case != "modified_in_place"]


@functools.cache
def run_all() -> dict[str, str]:
    command = [*herring_run("-n", "3", "--nodes", "2"), "-m", "torch_cases"]
    return outcomes(command, HERE, **TORCH_ENVIRONMENT)


@pytest.mark.skipif(not (FOLDER / "libcuda.so.1").exists(), reason="make test builds the stand-in")
@pytest.mark.parametrize("case", HERE)
@pytest.mark.timeout(300)
def test_case(case: str) -> None:
    if text := run_all()[case]:
        pytest.fail(text, pytrace=False)
