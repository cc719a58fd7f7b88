"""``algorithm="cuda-butterfly"`` on the stand-in for CUDA's driver: the host's bits, or errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpus import ENVIRONMENT, FOLDER, GPUS
from jobs import LAYOUTS, expect_success, program, run_job
from standin import STANDIN

pytestmark = [pytest.mark.timeout(150), STANDIN]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_bits_of_the_host(size: int) -> None:
    expect_success(
        run_job(
            ["-n", str(size)], program("butterfly_bits"), JITTER="100", timeout=120, **ENVIRONMENT
        )
    )


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_many_at_a_time(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], program("butterfly_many"), timeout=120, **ENVIRONMENT))


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
raises(herring.InvalidArgumentError, "'butterfly', 'cuda-butterfly'", herring.allreduce,
       array, algorithm="cuda-ring")
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], GPUS + script, **ENVIRONMENT))


def test_where_nothing_comes_of_a_call_its_array_is_untouched() -> None:
    script = """
array = GpuArray(np.full(500_000, 7, np.float32))
def untouched():
    time.sleep(0.05)
    return (array.get() == 7).all()

warm = GpuArray(np.ones(10, np.float32))
herring.allreduce(warm, algorithm="cuda-butterfly", prescale=0.5)
for scale in (1.0, 0.5):
    options = {"prescale": scale, "algorithm": "cuda-butterfly"}
    # Too late.
    if rank == 0:
        raises(herring.TimeoutError, "rank 1", herring.allreduce, array, name="late", timeout=1,
               **options)
    else:
        time.sleep(1.5)
        raises(herring.TimeoutError, "'late'", herring.allreduce, array, name="late", **options)
    assert untouched()
    # Refused by one rank, and by all.
    driver.capture(array.stream, rank == 1)
    text = "is being captured for a CUDA graph" if rank == 1 else "was refused by rank 1"
    raises(herring.InvalidArgumentError, text, herring.allreduce, array, name="c", **options)
    driver.capture(array.stream, False)
    assert untouched()
    raises(herring.MismatchError, "op max", herring.allreduce, array, "max" if rank else "sum",
           name="m", **options)
    assert untouched()
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
assert (array.get() == 7 * size).all()
driver.synchronize(0)
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


FAILING = (
    GPUS
    + """
first = GpuArray(np.ones(1_000_000, np.float32))
herring.allreduce(first, "sum", algorithm="cuda-butterfly") if os.environ["WARM"] == "1" else None
herring.barrier()
before, start = driver.calls(None), time.monotonic()
if rank == 0:
    driver.fail(None, int(os.environ["NTH"]), 719, os.environ["STICKY"] == "1")
try:
    for _ in range(3):
        herring.allreduce(first, "sum", algorithm="cuda-butterfly")
    print(f"rank {rank}: no error")
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
assert time.monotonic() - start < 3, "an error came late"
driver.fail(None, 0, 0, False)
driver.synchronize(0)  # no stream waits for what does not come
if rank == 0:
    print("calls", driver.calls(None) - before)
"""
)


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-ever"])
def test_a_driver_that_fails_ends_in_an_error_on_all_ranks(sticky: bool, warm: bool) -> None:
    for nth in (1, 12, 20, 33, 50):
        job = run_job(
            ["-n", "2", "--keep-going"],
            FAILING,
            NTH=str(nth),
            STICKY=str(int(sticky)),
            WARM=str(int(warm)),
            JITTER="0",
            **ENVIRONMENT,
        )
        said = expect_success(job)
        for rank in (0, 1):
            # A failed query only means an unknown feature, and memory need not be pinned.
            fine = f"rank {rank}: no error" in said and not sticky
            assert fine or (f"rank {rank}: " in said and "Error: " in said), (nth, said)
        assert "rank 0: DeviceError: " in said or not (sticky and warm), (nth, said)


@pytest.mark.parametrize("moment", ["before", "announced", "moving"])
@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_who_ends_in_the_middle_parks_nobody(how: str, moment: str) -> None:
    script = """
how, moment = os.environ["HOW"], os.environ["MOMENT"]
array = GpuArray(np.ones(6_000_000, np.float32), 0)
herring.allreduce(array, "sum", name="warm", algorithm="cuda-butterfly")
herring.barrier()
if rank == 1:
    if moment != "before":
        # With a kernel of 300 ms before its array is made, so that the others have begun.
        array.fill(1, 300_000 if moment == "moving" else 0)
        handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly")
    if moment == "moving":
        time.sleep(0.2)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    herring.shutdown()
    os._exit(0)
start = time.monotonic()
try:
    herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly")
    print(f"rank {rank}: no error")
    assert moment == "announced"  # it may be over before the end
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
assert time.monotonic() - start < 4, time.monotonic() - start
array.scale(2)
array.get()
driver.synchronize(0)  # no stream waits for what does not come
del array
print("nobody is parked")
"""
    layout = ["-n", "3", "--keep-going"]
    job = run_job(layout, GPUS + script, HOW=how, MOMENT=moment, **ENVIRONMENT)
    assert how == "dies" or job.returncode == 0, job.stdout
    assert job.stdout.count("nobody is parked") == 2, job.stdout


def test_a_group_whose_member_dies_parks_nobody_and_others_go_on() -> None:
    script = """
groups = [herring.new_group([1, 2]), herring.new_group([0, 1])]
array = GpuArray(np.ones(6_000_000, np.float32), 0)
for group in groups:
    if rank in group.ranks:
        herring.allreduce(array, "max", group=group, algorithm="cuda-butterfly")
herring.barrier()
if rank == 2:
    array.fill(1, 300_000)
    herring.allreduce_async(array, "sum", name="x", group=groups[0], algorithm="cuda-butterfly")
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    start = time.monotonic()
    raises(herring.PeerLostError, "rank 2", herring.allreduce, array, "sum", name="x",
           group=groups[0], algorithm="cuda-butterfly")
    assert time.monotonic() - start < 4
    driver.synchronize(0)  # no stream waits for what does not come
before = herring.stats()["gpu_sums"]
array = GpuArray(np.full(300_000, rank + 1, np.float32), 0)
herring.allreduce(array, "sum", name="y", group=groups[1], algorithm="cuda-butterfly")
assert (array.get() == 3).all()
assert herring.stats()["gpu_sums"] == before + 1
print("done without it", flush=True)
os._exit(0)
"""
    job = run_job(["-n", "3", "--keep-going"], GPUS + script, **ENVIRONMENT)
    assert job.stdout.count("done without it") == 2, job.stdout


@pytest.mark.parametrize(
    ("late", "missing"), [("rank", r"rank 1 \("), ("gpu", "the GPU of this rank")]
)
def test_a_deadline_names_whom_it_waits_for_and_parks_nobody(late: str, missing: str) -> None:
    script = """
# Rank 0 alone has a deadline: who is overdue first speaks for all.
array = GpuArray(np.ones(6_000_000, np.float32))
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
herring.barrier()
by_gpu = os.environ["LATE"] == "gpu"
if rank == 0:
    array.fill(1, 4_000_000 if by_gpu else 0)
    start = time.monotonic()
    try:
        herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly", timeout=2)
        raise AssertionError("there was no time-out")
    except herring.TimeoutError as error:
        print(f"told: {error}", flush=True)
    assert time.monotonic() - start < 3.5
    driver.synchronize(0)  # no stream waits for what does not come
    print("nobody is parked", flush=True)
    os._exit(0)
array.fill(1, 0 if by_gpu else 500_000)
handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly", timeout=100)
if not by_gpu:
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    handle.wait()
except herring.HerringError:
    os._exit(0)
"""
    settings = {"HERRING_HEARTBEAT_TIMEOUT": "100", **ENVIRONMENT}
    job = run_job(["-n", "2"], GPUS + script, timeout=12, LATE=late, **settings)
    said = r"told: .*allreduce 'x' \(butterfly, 6000000 float32\) waited [\d.]+ s for (.*)"
    told = re.search(said, job.stdout)
    assert told is not None, job.stdout
    assert re.match(missing, told[1]), told[1]
    assert "nobody is parked" in job.stdout, job.stdout


def test_a_device_that_is_lost_ends_the_job() -> None:
    script = """
array = GpuArray(np.ones(100_000, np.float32))
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
herring.barrier()
if rank == 0:
    array.fill(1, 500_000)
    driver.fail(b"cuStreamQuery", 1, 719, True)
    text = "GPU 0: cuStreamQuery failed: unspecified launch failure"
else:
    text = "cuStreamQuery failed"
start = time.monotonic()
raises(herring.HerringError, text, herring.allreduce, array, "sum", algorithm="cuda-butterfly")
assert time.monotonic() - start < 2
"""
    expect_success(run_job(["-n", "2", "--keep-going"], GPUS + script, **ENVIRONMENT))


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
