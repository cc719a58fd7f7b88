"""Cases of `torch_cases` and `backend_cases` with all tensors on a GPU: on the stand-in's."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

import backend_cases
import torch_cases
from batches import herring_run, outcomes
from gpus import FOLDER, TORCH_ENVIRONMENT

# What a tensor counts is not to be seen there; and compiling does not care where tensors are.
WRAPPERS = [
    case for case in torch_cases.CASES if "compiled" not in case and case != "modified_in_place"
]
BACKEND = list(backend_cases.CASES)


@functools.cache
def run_all(cases: str) -> dict[str, str]:
    if cases == "backend":
        command = [*herring_run("-n", "4", "--nodes", "2", seconds=160), "-m", "backend_cases"]
        command += ["--init", "herring://"]
        return outcomes(command, BACKEND, seconds=170, OMP_NUM_THREADS="1", **TORCH_ENVIRONMENT)
    command = [*herring_run("-n", "3", "--nodes", "2"), "-m", "torch_cases"]
    return outcomes(command, WRAPPERS, **TORCH_ENVIRONMENT)


@pytest.mark.skipif(not (FOLDER / "libcuda.so.1").exists(), reason="make test builds the stand-in")
@pytest.mark.parametrize(
    ("cases", "case"),
    [*(("wrappers", case) for case in WRAPPERS), *(("backend", case) for case in BACKEND)],
)
@pytest.mark.timeout(300)
def test_case(cases: str, case: str) -> None:
    if text := run_all(cases)[case]:
        pytest.fail(text, pytrace=False)
