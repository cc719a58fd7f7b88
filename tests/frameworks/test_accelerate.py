"""Runs an unchanged script of Accelerate over Herring: it ends as under Gloo."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("accelerate") is None:
    pytest.skip("needs accelerate", allow_module_level=True)

from jobs import expect_success, program, run_job
from trained import SCRIPTS, STARTS, TORCHRUN, check_death, compare

SCRIPT = "accelerate_script.py"


@pytest.mark.parametrize("start", STARTS)
def test_unchanged(start: str) -> None:
    report = compare(STARTS[start], SCRIPT)
    assert report["kind"].endswith("MULTI_CPU") and report["wrapper"] == "DistributedDataParallel"


def test_mixed_precision() -> None:
    compare(STARTS["torchrun"], SCRIPT, "bf16")


def test_one_line() -> None:
    """The script calls `init_process_group` before `Accelerator()`."""
    compare(TORCHRUN, SCRIPT, BACKEND="herring")


def test_a_rank_dies() -> None:
    check_death(SCRIPT)


@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
def test_with_herrings_wrappers(wrap: str) -> None:
    """Accelerate knows of no other ranks."""
    script = program("wrapped_script", "accelerate", wrap, folder=SCRIPTS)
    expect_success(run_job(["-n", "2"], script))
