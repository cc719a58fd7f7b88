"""Tests herring.horovod.mxnet: every case of horovod_mxnet_cases.py in real jobs, and a script."""

from __future__ import annotations

import importlib.util

import pytest

from herring.parts import install_command

if importlib.util.find_spec("mxnet") is None:
    pytest.skip("needs mxnet", allow_module_level=True)

from cases import HERE, LAYOUTS, check, check_script, jobs, listed, without

SCRIPT = "horovod_mxnet_cases.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", listed(SCRIPT))
def test_case(layout: str, case: str) -> None:
    check(SCRIPT, layout, case)


def test_unchanged_script() -> None:
    check_script("horovod_mxnet_mnist.py", "weights of all ranks are the same")


def test_a_rank_dies() -> None:
    jobs().expect_known(
        ["-n", "3", "--nodes", "3"],
        jobs().program("horovod_mxnet_death", folder=HERE / "programs"),
        victim=1,
        survivors=2,
    )


def test_without_it() -> None:
    assert install_command("mxnet") in without("mxnet", "herring.horovod.mxnet")
