"""``algorithm="cuda-butterfly"`` on the stand-in for CUDA's driver: the host's bits, or errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpus import ENVIRONMENT, FOLDER, GPUS
from jobs import LAYOUTS, expect_success, program, run_job
from standin import STANDIN

pytestmark = STANDIN

# All timeouts are longer than a job may take, so none of them ends a wait.
LONG = {"HERRING_HEARTBEAT_TIMEOUT": "600", "HERRING_TIMEOUT": "600"}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_bits_of_the_host(size: int) -> None:
    expect_success(
        run_job(
            ["-n", str(size)],
            program("butterfly_bits"),
            JITTER="100",
            HERRING_NODE_STAGE="staged",
            **ENVIRONMENT,
        )
    )


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_many_at_a_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("butterfly_many"), **ENVIRONMENT))


def test_bfloat16_and_arrays_that_begin_anywhere() -> None:
    script = """
import torch
from gpus import Adopted

for dtype in (torch.bfloat16, torch.float32):
    for count, first in ((1009, 1), (600_001, 3)):
        torch.manual_seed(rank)
        whole = (torch.randn(count + first) * 1000).to(dtype)
        wanted = whole[first:].clone()
        herring.allreduce(wanted, "average", algorithm="butterfly")
        launches = driver.calls(b"cuLaunchKernel")
        herring.allreduce(Adopted(whole[first:]), "average", algorithm="cuda-butterfly")
        assert torch.equal(whole[first:], wanted), (dtype, count)
        assert driver.calls(b"cuLaunchKernel") > launches
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], GPUS + script, **ENVIRONMENT))


def test_it_meets_the_butterfly_of_the_host() -> None:
    script = """
array = GpuArray(np.full(1000, rank, np.float32))
herring.allreduce(array, "sum", algorithm="cuda-butterfly" if rank else "butterfly")
assert (array.get() == sum(range(size))).all()
raises(herring.MismatchError, "algorithm ring", herring.allreduce,
       array, "sum", name="y", algorithm="cuda-butterfly" if rank else "ring")
raises(herring.InvalidArgumentError, "'butterfly', 'doubling', 'cuda-butterfly'", herring.allreduce,
       array, algorithm="cuda-ring")
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], GPUS + script, **ENVIRONMENT))


def test_where_nothing_comes_of_a_call_its_array_is_untouched(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), **ENVIRONMENT}
    expect_success(run_job(["-n", "2"], program("butterfly_untouched"), **settings))


# Calls before the one that fails: with five, GPUs that reach each other need no host memory.
@pytest.mark.parametrize("calls", ["cold", "warm", "peers"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-ever"])
def test_a_driver_that_fails_ends_in_an_error_on_all_ranks(sticky: bool, calls: str) -> None:
    settings = {"WARM": {"cold": "0", "warm": "1", "peers": "5"}[calls], **LONG, **ENVIRONMENT}
    if calls == "peers":
        settings["STANDIN_PEERS"] = "1"
    for nth in (1, 12, 20, 33, 50):
        job = run_job(
            ["-n", "2", "--keep-going"],
            program("butterfly_driver_fails"),
            NTH=str(nth),
            STICKY=str(int(sticky)),
            JITTER="0",
            **settings,
        )
        said = expect_success(job)
        for rank in (0, 1):
            # A failed query only means an unknown feature, and memory need not be pinned.
            fine = f"rank {rank}: no error" in said and not sticky
            assert fine or (f"rank {rank}: " in said and "Error: " in said), (nth, said)
        assert "rank 0: DeviceError: " in said or not (sticky and calls == "warm"), (nth, said)


@pytest.mark.parametrize("moment", ["before", "announced", "moving"])
@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_who_ends_in_the_middle_parks_nobody(how: str, moment: str, tmp_path: Path) -> None:
    layout = ["-n", "3", "--keep-going"]
    settings = {"FOLDER": str(tmp_path), **LONG, **ENVIRONMENT}
    job = run_job(layout, program("butterfly_ends"), HOW=how, MOMENT=moment, **settings)
    assert how == "dies" or job.returncode == 0, job.stdout
    assert job.stdout.count("nobody is parked") == 2, job.stdout


def test_a_group_whose_member_dies_parks_nobody_and_others_go_on(tmp_path: Path) -> None:
    settings = {"FOLDER": str(tmp_path), **LONG, **ENVIRONMENT}
    job = run_job(["-n", "3", "--keep-going"], program("butterfly_group_death"), **settings)
    assert job.stdout.count("done without it") == 2, job.stdout


@pytest.mark.parametrize(
    ("late", "missing"), [("rank", r"rank 1 \("), ("gpu", "the GPU of this rank")]
)
def test_a_deadline_names_whom_it_waits_for_and_parks_nobody(
    late: str, missing: str, tmp_path: Path
) -> None:
    settings = {"FOLDER": str(tmp_path), **LONG, **ENVIRONMENT}
    job = run_job(["-n", "2"], program("butterfly_deadlines"), LATE=late, **settings)
    said = r"told: .*allreduce 'x' \(butterfly, 6000000 float32\) waited [\d.]+ s for (.*)"
    told = re.search(said, job.stdout)
    assert told is not None, job.stdout
    assert re.match(missing, told[1]), told[1]
    assert "nobody is parked" in job.stdout, job.stdout


def test_a_device_that_is_lost_ends_the_job() -> None:
    script = """
array = GpuArray(np.ones(100_000, np.float32))
for step in range(5):  # until it is known which memory the GPUs reach
    herring.allreduce(array, "sum", algorithm="cuda-butterfly")
herring.barrier()
from gate import Gate
from support import meet_outside
meet_outside(rank, range(size))
gate = Gate()
if rank == 0:
    gate.hold(array)  # The kernel does not end before the call has failed.
    array.fill(1)
    driver.fail(b"cuStreamQuery", 1, 719, True)
    text = "GPU 0: cuStreamQuery failed: unspecified launch failure"
else:
    text = "cuStreamQuery failed"
raises(herring.HerringError, text, herring.allreduce, array, "sum", algorithm="cuda-butterfly")
gate.open()
"""
    job = run_job(["-n", "2", "--keep-going"], GPUS + script, **LONG, **ENVIRONMENT)
    expect_success(job)


def test_without_a_compiler_the_host_sums_and_says_so_once(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").symlink_to(FOLDER / "libcuda.so.1")
    script = """
for step in range(3):
    array = GpuArray(np.full(10_000, rank, np.float32))
    herring.allreduce(array, "sum", algorithm="cuda-butterfly")
    assert (array.get() == sum(range(size))).all()
assert driver.calls(b"cuLaunchKernel") == 0
herring.shutdown()
"""
    nowhere = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_HOME": "", "CUDA_PATH": ""}
    said = expect_success(run_job(["-n", "2"], GPUS + script, **{**ENVIRONMENT, **nowhere}))
    assert said.count("'cuda-butterfly': arrays are copied to host memory") == 2, said
    assert "no CUDA compiler" in said


def test_memory_that_no_kernel_can_read_is_said_and_the_host_sums() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array, "sum", algorithm="cuda-butterfly")  # flags are pinned from now on
driver.fail(b"cuMemHostRegister", 1, 1, False)
large = GpuArray(np.ones(3_000_000, np.float32))
for step in range(2):
    herring.allreduce(large, "sum", algorithm="cuda-butterfly")
    assert (large.get() == size ** (step + 1)).all()
herring.shutdown()
"""
    said = expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))
    assert said.count("the GPU cannot read host memory") == 2, said
