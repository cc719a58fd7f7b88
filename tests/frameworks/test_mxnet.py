"""Tests herring.mxnet in real jobs: every case of mxnet_cases.py, and the example."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("needs mxnet", allow_module_level=True)

from cases import HERE, LAYOUTS, check, check_losses, jobs, listed, without

SCRIPT = "mxnet_cases.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", listed(SCRIPT))
@pytest.mark.timeout(900)
def test_case(layout: str, case: str) -> None:
    check(SCRIPT, layout, case)


@pytest.mark.timeout(300)
def test_example_equals_a_single_process() -> None:
    check_losses("mxnet_step.py", "weights of all ranks: bit-identical")


@pytest.mark.timeout(300)
def test_a_rank_dies() -> None:
    seconds, output = jobs().seconds_until_known(
        ["-n", "3", "--nodes", "3"],
        jobs().program("mxnet_death", folder=HERE / "programs"),
        victim=1,
        survivors=2,
    )
    assert seconds < 10, output


@pytest.mark.timeout(90)
def test_without_it() -> None:
    assert install_command("mxnet") in without("mxnet", "herring.mxnet")
