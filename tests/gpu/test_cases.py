"""Runs the cases of torch's adapters with all tensors on a real GPU."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU", allow_module_level=True)
sys.path += [str(Path(__file__).resolve().parents[1] / name) for name in ("support", "python")]

import backend_cases  # noqa: E402
import horovod_cases  # noqa: E402
import torch_cases  # noqa: E402
from batches import herring_run, outcomes  # noqa: E402

# A forked child cannot use a GPU, compiling takes long, two cases are about other devices, and one
# counts calls of a thread that does not run the backward pass of a GPU.
ELSEWHERE = ["forked", "compiled", "c_plus_plus", "advice_helps", "devices_of_other_backends"]
ELSEWHERE += ["many_small_parameters"]
# These need dist.new_group(sort_ranks=), and functional operators that take any strides.
OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
NEW = ["sub_groups", "every_operator"] if OLD else []
CASES = {
    one.__name__: [name for name in one.CASES if not any(word in name for word in ELSEWHERE + NEW)]
    for one in (torch_cases, backend_cases, horovod_cases)
}
LAYOUTS = {
    "torch_cases": ["-n", "3", "--nodes", "2"],
    "backend_cases": ["-n", "4", "--nodes", "2"],
    "horovod_cases": ["-n", "4", "--nodes", "2", "--servers", "1"],
}
OPTIONS = {"backend_cases": ["--init", "herring://"]}


@functools.cache
def run_all(package: str) -> dict[str, str]:
    here = Path(__file__).parent
    paths = [
        here / "on_cuda",
        here.parent / "support",
        here.parent / "python",
        os.environ.get("PYTHONPATH", ""),
    ]
    command = [*herring_run(*LAYOUTS[package]), "-m", package, *OPTIONS.get(package, [])]
    return outcomes(command, CASES[package], PYTHONPATH=":".join(map(str, paths)).rstrip(":"))


@pytest.mark.parametrize(
    ("package", "case"), [(package, case) for package in CASES for case in CASES[package]]
)
@pytest.mark.timeout(450)
def test_case(package: str, case: str) -> None:
    if text := run_all(package)[case]:
        pytest.fail(text, pytrace=False)
