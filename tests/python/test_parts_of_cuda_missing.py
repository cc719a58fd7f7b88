"""Machines whose CUDA lacks the driver, a function of it, or a function of the compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpus import BY_KERNELS, ENVIRONMENT, GPUS
from herring import _core
from jobs import expect_success, program, run_job
from standin import STANDIN, checked

pytestmark = STANDIN


@pytest.fixture
def old_compiler(tmp_path: Path) -> dict[str, str]:
    """Returns an environment in which a library without any of NVRTC's functions has its name."""
    (tmp_path / "libnvrtc.so.13").symlink_to(_core.__file__)
    return {"LD_LIBRARY_PATH": f"{tmp_path}:{ENVIRONMENT['LD_LIBRARY_PATH']}"}


@pytest.mark.parametrize("lacking", ["driver", "cuStreamWriteValue32"])
def test_one_rank_of_two_whose_machine_has_no_usable_driver(lacking: str) -> None:
    expect_success(run_job(["-n", "2"], program("gpu_lacking"), LACKING=lacking, **ENVIRONMENT))


def test_one_rank_of_two_whose_streams_cannot_wait(old_compiler: dict[str, str]) -> None:
    environment = {**ENVIRONMENT, "OLD": old_compiler["LD_LIBRARY_PATH"]}
    expect_success(run_job(["-n", "2"], program("gpu_lacking"), LACKING="waits", **environment))


def test_check_says_what_the_driver_and_the_compiler_lack(old_compiler: dict[str, str]) -> None:
    assert checked("--no-run", STANDIN_LACKS="cuStreamWaitValue32")["GPUs"]["value"] == (
        "none (libcuda.so.1 has no cuStreamWaitValue32 of CUDA 11.7; a driver for CUDA 11.7 or "
        "later is needed)"
    )
    assert checked("--no-run", **old_compiler)["GPU compiler"]["value"] == (
        "none (the NVRTC library lacks a function; CUDA 11.2 or later is needed)"
    )
    gpu = checked("--no-run", **old_compiler, **BY_KERNELS)["GPU 1"]
    assert gpu["verdict"] == "note" and gpu["value"].endswith("NUMA node 0")
    assert gpu["advice"] == (
        "Herring cannot use arrays on this GPU: GPU 1 (stand-in 1) has no memory operations on "
        "streams, and kernels cannot wait instead: the NVRTC library lacks a function; CUDA 11.2 "
        "or later is needed"
    )


def test_processors_add_and_cast_where_a_rank_has_an_old_compiler(
    old_compiler: dict[str, str],
) -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
assert (array.get() == 2).all()
assert herring.stats()["gpu_sums"] == 1 - rank
for wire in (None, "bfloat16"):
    plan = herring.PlannedReduction(
        [(1000, "float32")], name=f"p{wire}", op="sum", device=0, wire_dtype=wire
    )
    arena = GpuArray(np.zeros(1000, np.float32))
    plan.place([arena])
    for _ in range(4):
        plan.begin()
        arena.fill(rank + 1)
        plan.ready(0)
        plan.wait()
        assert (arena.get() == 3).all()
    assert plan.node_stage == "host"
    plan.close()
herring.shutdown()
"""
    # Only rank 1 has the old compiler.
    begin = f"""
import os, sys
if os.environ["HERRING_RANK"] == "1" and "OLD" in os.environ:
    os.environ["LD_LIBRARY_PATH"] = os.environ.pop("OLD")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
{GPUS}"""
    said = expect_success(
        run_job(
            ["-n", "2"],
            begin + script,
            OLD=old_compiler["LD_LIBRARY_PATH"],
            HERRING_LOG_LEVEL="info",
            **ENVIRONMENT,
        )
    )
    why = "the NVRTC library lacks a function; CUDA 11.2 or later is needed"
    assert f"processors cast them to bfloat16: {why}" in said, said
    assert f"processors add for GPU 0: {why}" in said, said
