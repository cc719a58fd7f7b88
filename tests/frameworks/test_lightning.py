"""Runs Lightning's Trainer and Fabric over Herring: they end as under Gloo."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("lightning") is None:
    pytest.skip("needs lightning", allow_module_level=True)

from jobs import expect_success, program, run_job
from trained import SCRIPTS, STARTS, TORCHRUN, check_death, compare

TRAINER, FABRIC = "lightning_script.py", "fabric_script.py"


@pytest.mark.parametrize("script", [TRAINER, FABRIC])
@pytest.mark.parametrize("start", STARTS)
def test_unchanged(start: str, script: str) -> None:
    nodes = {"DEVICES": "1", "NODES": "2"} if start == "two-nodes" else {}
    compare(STARTS[start], script, **nodes)


@pytest.mark.parametrize("script", [TRAINER, FABRIC])
def test_strategy(script: str) -> None:
    """The script uses `DDPStrategy(process_group_backend="herring")`."""
    compare(TORCHRUN, script, BACKEND="herring")


@pytest.mark.parametrize("script", [TRAINER, FABRIC])
def test_mixed_precision(script: str) -> None:
    compare(STARTS["torchrun"], script, "bf16-mixed")


@pytest.mark.parametrize("script", [TRAINER, FABRIC])
def test_a_rank_dies(script: str) -> None:
    check_death(script)


@pytest.mark.parametrize("wrap", ["ddp", "optimizer"])
@pytest.mark.parametrize("route", ["trainer", "fabric"])
def test_with_herrings_wrappers(route: str, wrap: str) -> None:
    """Lightning knows of no other ranks."""
    expect_success(run_job(["-n", "2"], program("wrapped_script", route, wrap, folder=SCRIPTS)))
