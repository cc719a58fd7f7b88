"""Arrays on GPUs of the stand-in for CUDA's driver: sums are right in any order of events."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from gpus import ENVIRONMENT, GPUS
from jobs import LAYOUTS, expect_success, program, run_job
from standin import STANDIN

pytestmark = [pytest.mark.timeout(150), STANDIN]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", ["auto", "host"])
@pytest.mark.parametrize("name", ["gpu_collectives", "gpu_gathers", "gpu_rounds"])
def test_right_under_jitter(name: str, layout: str, stage: str) -> None:
    if name != "gpu_rounds" and stage == "host":
        pytest.skip("only planned rounds have a choice")
    expect_success(run_job(LAYOUTS[layout], program(name), HERRING_NODE_STAGE=stage, **ENVIRONMENT))


def test_a_plan_on_a_gpu_may_have_no_gradients() -> None:
    script = """
plan = herring.PlannedReduction([], name="p", device=0, note_bytes=size)
for _ in range(4):
    plan.begin()
    plan.note(bytes(r == rank for r in range(size)))
    plan.wait()
    assert plan.notes == bytes([1] * size)
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


@pytest.mark.parametrize("stage", ["host", "staged"])
def test_a_round_with_nothing_to_add_comes_after_the_way_back_of_the_last(stage: str) -> None:
    script = """
import ctypes

def copied(array):  # as it is behind what is queued now
    library, context = driver._library, ctypes.c_void_p()
    values = np.empty(array.shape, np.float32)
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    library.cuCtxPushCurrent_v2(context)
    failed = library.cuMemcpyDtoHAsync_v2(
        ctypes.c_void_p(values.ctypes.data), ctypes.c_uint64(array.address),
        ctypes.c_size_t(values.nbytes), ctypes.c_void_p(array.stream))
    assert failed == 0
    library.cuCtxPopCurrent_v2(ctypes.byref(context))
    return values

plan = herring.PlannedReduction([(1000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
found = []
for step in range(5):
    if rank == 1:
        arena.fill(0, 100_000)  # the GPU is behind
    plan.begin(rank == 0)
    if rank == 0:
        arena.fill(step + 1)
        plan.ready(0)
    plan.wait()
    found.append(copied(arena))
arena.get()
for step, values in enumerate(found):
    assert (values[:1000] == step + 1).all(), (step, values[:3])
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, HERRING_NODE_STAGE=stage, **ENVIRONMENT))


def test_bad_input_is_refused_with_its_name() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
driver.capture(array.stream, True)
if rank == 0:
    raises(herring.InvalidArgumentError, "is being captured for a CUDA graph",
           herring.allreduce, array, name="c")
else:
    raises(herring.InvalidArgumentError, "was refused by rank 0",
           herring.allreduce, np.ones(1000, np.float32), name="c")
driver.capture(array.stream, False)
for call, text in (
    (herring.allgather, "lies on GPU 0, not in host memory; copy it there first"),
    (herring.reduce_scatter, "lies on GPU 0, not in host memory"),
    (herring.alltoall, "lies on GPU 0, not in host memory"),
):
    raises(herring.InvalidArgumentError, text, call, array, name=call.__name__)
raises(herring.InvalidArgumentError,
       "array 1 of the list: it lies in host memory, and array 0 on GPU 0",
       herring.grouped_allreduce, [array, np.ones(3, np.float32)])
raises(herring.InvalidArgumentError,
       "array 1 of the list: it lies on GPU 1, and array 0 on GPU 0",
       herring.grouped_allreduce, [array, GpuArray(np.ones(3, np.float32), device=1)])
raises(herring.InvalidArgumentError, "there is no GPU 7; this process sees 2",
       herring.PlannedReduction, [(10, "float32")], name="seven", device=7)
raises(herring.InvalidArgumentError, "device is -1", herring.PlannedReduction,
       [(10, "float32")], name="less", device=-1)
freed = GpuArray(np.ones(100_000, np.float32))
driver.free(0, freed.address)
raises(herring.InvalidArgumentError, "its 400000 bytes do not lie in memory of GPU 0",
       herring.allreduce, freed)
elsewhere = GpuArray(np.ones(1000, np.float32), device=1)
elsewhere.device = 0
raises(herring.InvalidArgumentError, "its 4000 bytes do not lie in memory of GPU 0",
       herring.allreduce, elsewhere)
elsewhere.device = 1
plan = herring.PlannedReduction([(1000, "float32")], name="p", device=0)
raises(herring.InvalidArgumentError, "begin() before place()", plan.begin)
raises(herring.InvalidArgumentError, "arena 0 has 4000 bytes on GPU 1; this plan needs",
       plan.place, [GpuArray(np.ones(1000, np.float32), device=1)])
raises(herring.InvalidArgumentError, "in host memory; this plan needs",
       plan.place, [np.ones(1000, np.float32)])
raises(herring.InvalidArgumentError, "0 arenas on the device; this plan has 1", plan.place, [])
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
raises(herring.InvalidArgumentError, "gradient 0 is ready before begin()", plan.ready, 0)
plan.begin()
raises(herring.InvalidArgumentError, "gradient 5 does not exist", plan.ready, 5)
raises(herring.InvalidArgumentError, "wait() before gradients 0 were ready", plan.wait)
plan.ready(0)
raises(herring.InvalidArgumentError, "gradient 0 is ready twice", plan.ready, 0)
plan.wait()
raises(herring.InvalidArgumentError, "place() after begin()", plan.place, [arena])
on_host = herring.PlannedReduction([(1000, "float32")], name="h")
raises(herring.InvalidArgumentError, "create it with device=", on_host.place, [arena])
herring.allreduce(array, name="all is well")
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


def test_without_a_driver_the_error_says_so() -> None:
    script = """
class Array:
    def __dlpack_device__(self): return 2, 0
    def __dlpack__(self, stream=None): raise AssertionError("is not asked for")

herring.init()
raises(herring.ConfigurationError, "no CUDA driver: libcuda.so.1", herring.allreduce, Array())
"""
    expect_success(run_job(["-n", "1"], script, LD_LIBRARY_PATH="/nowhere"))


def test_a_forked_child_is_told_that_it_cannot() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array)
child = os.fork()
if child == 0:
    from herring import _core
    try:
        _core.describe_devices()
    except herring.ShutdownError as error:
        os._exit(0 if "forked" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
herring.allreduce(array)
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))


def test_check_tells_of_each_gpu() -> None:
    def lines(*options: str, **environment: str) -> dict[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "herring.launch.cli", "check", "--json", *options],
            env={**os.environ, **ENVIRONMENT, **environment},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)["findings"]
        return {one["name"]: f"{one['verdict']} {one['value']}" for one in found}

    found = lines("--no-run")
    assert found["GPU driver"] == "ok CUDA 13.0, 2 GPUs"
    assert found["GPU 1"] == (
        "ok stand-in 1, 4.295 GB, compute capability 9.0, at 0000:02:00.0, NUMA node 0, memory "
        "operations on streams"
    )
    assert found["peer access"] == "ok none"
    assert "GPU 0, copies" not in found
    found = lines(STANDIN_STREAM_MEMORY="0")
    assert found["GPU 0"].startswith("note stand-in 0") and "operations" not in found["GPU 0"]
    assert re.fullmatch(
        r"ok out [\d.]+ GB/s, in [\d.]+ GB/s, both at once [\d.]+ GB/s, in pinned memory",
        found["GPU 1, copies"],
    )
    found = lines("--no-run", LD_LIBRARY_PATH="/nowhere")
    assert found["GPUs"].startswith("ok none (no CUDA driver: libcuda.so.1")


def test_memory_that_cannot_be_pinned_is_said_and_works() -> None:
    script = """
array = GpuArray(np.ones(1000, np.float32))
herring.allreduce(array, "sum")  # flags are pinned from now on
driver.fail(b"cuMemHostRegister", 1, 1, False)
large = GpuArray(np.ones(3_000_000, np.float32))
for step in range(2):
    herring.allreduce(large, "sum")
    assert (large.get() == size ** (step + 1)).all()
assert driver.bytes()[2] > 0
herring.shutdown()
"""
    said = expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))
    assert said.count("memory for copies to and from GPUs cannot be pinned") == 2, said
    assert "ulimit -l unlimited" in said


# Programs with unusual orders of calls, threads, groups and jobs.
ORDERS = (
    GPUS
    + """
import threading

# Two plans, in another order on each rank, and a collective between their gradients.
gpu = rank % gpus
plans, arenas = [], []
for number in range(2):
    plan = herring.PlannedReduction(
        [(200_000, "float32")] * 3, name=f"p{number}", op="sum", device=gpu, buffer_bytes=1 << 20)
    arenas.append(GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32), gpu))
    plan.place([arenas[-1]])
    plans.append(plan)
norm = GpuArray(np.ones(1000, np.float32), gpu)
order = (0, 1) if rank % 2 else (1, 0)
for step in range(5):
    for number in order:
        plans[number].begin()
        arenas[number].fill(rank + step + number)
    for place, number in enumerate(order):
        plans[number].ready_all([0, 1])
        norm.fill(1)
        herring.allreduce(norm, "sum", name=f"norm{place}")
        # All that is queued for the arena from now on follows that result.
        driver.order(norm.stream, arenas[1 - number].stream)
        plans[number].ready(2)
    for number in reversed(order):
        plans[number].wait()
        found = arenas[number].get()[:600_000]
        assert (found == sum(r + step + number for r in range(size))).all(), (step, number)

# Threads, each with its names; a second wait, in another stream.
def calls(thread):
    array = GpuArray(np.zeros(20_000, np.float32), gpu, tells=thread % 2)
    for step in range(10):
        array.fill(rank + step + thread)
        handle = herring.allreduce_async(array, "sum", name=f"t{thread}.{step}")
        if thread % 3 == 0:
            handle.add_done_callback(lambda done: done.wait())
        handle.wait()
        array.stream = driver.stream(gpu)
        handle.wait()
        wanted = sum(r + step + thread for r in range(size))
        assert (array.get() == wanted).all(), (thread, step, array.get()[:3], wanted)
    done.append(thread)

done = []
threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
assert sorted(done) == [0, 1, 2, 3]

# A group, one that has no more data, handles that nobody waits for, and another job after this.
half = herring.new_group(range(0, size, 2))
if rank % 2 == 0:
    array = GpuArray(np.full(5000, rank, np.float32), gpu)
    herring.allreduce(array, "sum", group=half)
    assert (array.get() == sum(range(0, size, 2))).all()
array = GpuArray(np.full(5000, 1, np.float32), gpu)
for _ in range(rank + 1):
    array.fill(1)
    herring.allreduce(array, "sum", name="uneven")
herring.join()
herring.allreduce_async(array, "sum", name="dropped")
herring.barrier()
for plan in plans:
    plan.close()
herring.shutdown()
herring.init()
array.fill(1)
herring.allreduce(array, "sum")
assert (array.get() == size).all()
herring.shutdown()
"""
)


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "dedicated-servers"])
def test_orders_threads_groups_and_jobs_in_turn(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], ORDERS, HERRING_PROXIES="3", **ENVIRONMENT))


def test_a_wait_on_the_host_for_a_copy_sleeps_no_longer_than_the_copy_takes() -> None:
    script = """
array = GpuArray(np.zeros(50_000, np.float32), tells=False)
plan = herring.PlannedReduction([(50_000, "float32")], name="p", op="sum", device=0)
plan.place([array])

def rounds():
    plan.begin()
    plan.ready(0)
    plan.wait()

for call in (lambda: herring.allreduce(array, "max"),
             lambda: herring.grouped_allreduce([array], "max"),
             lambda: herring.broadcast(array, 1), rounds):
    call()
    herring.barrier()
    start = time.monotonic()
    for _ in range(20):
        call()
    took = time.monotonic() - start
    assert took < 20 * 0.025, took  # the engine's timer goes off each 50 ms
herring.barrier()
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, JITTER="0", **ENVIRONMENT))
