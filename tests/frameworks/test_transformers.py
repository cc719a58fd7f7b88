"""Runs an unchanged Trainer script of Transformers over Herring: it ends as under Gloo."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

from trained import STARTS, check_death, compare

SCRIPT = "transformers_script.py"


@pytest.mark.parametrize("start", STARTS)
def test_unchanged(start: str) -> None:
    assert compare(STARTS[start], SCRIPT)["wrapper"] == "DistributedDataParallel"


def test_mixed_precision() -> None:
    compare(STARTS["torchrun"], SCRIPT, "bf16")


def test_a_rank_dies() -> None:
    check_death(SCRIPT)
