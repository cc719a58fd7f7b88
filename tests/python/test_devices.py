"""Arrays on GPUs of the stand-in for CUDA's driver: right sums or errors in any order of events."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from gpu_scripts import COLLECTIVES, GATHERS, GPUS, ROUNDS
from gpus import ENVIRONMENT, FOLDER
from jobs import LAYOUTS, expect_success, run_job

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(
        not (FOLDER / "libcuda.so.1").exists(),
        reason="the stand-in for CUDA's driver is not built: make test builds it",
    ),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", ["auto", "host"])
@pytest.mark.parametrize(
    "script", [COLLECTIVES, GATHERS, ROUNDS], ids=["collectives", "gathers", "rounds"]
)
def test_right_under_jitter(script: str, layout: str, stage: str) -> None:
    if script != ROUNDS and stage == "host":
        pytest.skip("only planned rounds have a choice")
    expect_success(run_job(LAYOUTS[layout], script, HERRING_NODE_STAGE=stage, **ENVIRONMENT))


# The kernel runs for 15 seconds, which stands for a kernel that never ends.
def test_a_plan_whose_gpu_hangs_is_closed_and_its_memory_stays() -> None:
    script = """
plan = herring.PlannedReduction([(300_000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
plan.begin()
arena.fill(1, 15_000_000)
plan.ready(0)
stream = arena.stream
del arena
start = time.monotonic()
plan.close()
took = time.monotonic() - start
assert 6 < took < 10, took  # the time-out, then 5 s
raises(herring.HerringError, "was closed inside round 0", herring.allreduce, np.ones(3))
import ctypes
driver.order(ctypes.c_void_p(stream), None)  # the kernel ends, and writes to memory that is there
time.sleep(0.3)  # as do the copies behind it
print("closed")
"""
    job = run_job(["-n", "1"], GPUS + script, HERRING_TIMEOUT="2", JITTER="0", **ENVIRONMENT)
    assert "closed" in job.stdout, job.stdout
    assert "'p': GPU 0 has not come to copies that were queued" in job.stdout, job.stdout
    assert "the memory of the plan is kept for ever" in job.stdout, job.stdout


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


FAILING = (
    GPUS
    + """
first, second = (GpuArray(np.zeros(1_000_000, np.float32)) for _ in range(2))

def allreduces():
    for _ in range(3):
        herring.allreduce(first, "sum")

def lists():
    for _ in range(3):
        herring.grouped_allreduce([first, second], "sum")

def rounds():
    plan = herring.PlannedReduction([(500_000, "float32")] * 2, name="p", device=0)
    plan.place([first])
    for _ in range(5):
        plan.begin()
        plan.ready_all([1, 0])
        plan.wait()
    if rank == 0:
        print("closed after call", driver.calls(None) - before)

herring.barrier()
before, start = driver.calls(None), time.monotonic()
if rank == 0:
    driver.fail(None, int(os.environ["NTH"]), 719, os.environ["STICKY"] == "1")
try:
    {"allreduces": allreduces, "lists": lists, "rounds": rounds}[os.environ["CALLS"]]()
    print(f"rank {rank}: no error")
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
assert time.monotonic() - start < 2, "an error came late"
if rank == 0:
    print("failed call:", driver.failed().decode())
"""
)


def run_failing(calls: str, nth: int, sticky: bool) -> str:
    """Lets the n-th driver call of rank 0 fail, and returns the output of all ranks."""
    job = run_job(
        ["-n", "2", "--keep-going"],
        FAILING,
        CALLS=calls,
        NTH=str(nth),
        STICKY=str(int(sticky)),
        JITTER="0",
        HERRING_LOG_LEVEL="info",
        **ENVIRONMENT,
    )
    return expect_success(job)


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-ever"])
@pytest.mark.parametrize("calls", ["allreduces", "lists", "rounds"])
def test_a_driver_that_fails_ends_in_an_error_on_all_ranks(calls: str, sticky: bool) -> None:
    for nth in (1, 9, 28, 44, 59, 79, *((109, 139, 179, 219, 239) if calls == "rounds" else ())):
        said = run_failing(calls, nth, sticky)
        # Some failed calls are no errors. A failed query only means an unknown feature, memory need
        # not be pinned, and processors can add instead. A resource whose release fails is simply
        # dropped, and a context that stays current does no harm.
        fine = ("cannot be pinned", "processors add for GPU", "through host memory")
        gone = re.search(
            r"failed call: cu\w+(Destroy|Free|Unregister|CloseMemHandle|PopCurrent)\b", said
        )
        closed = re.search(r"closed after call (\d+)", said)  # queued work ends then
        ends = gone is not None or (closed is not None and int(closed[1]) < nth)
        does_without = nth < 28 or ends or any(text in said for text in fine)
        for rank in (0, 1):
            without = f"rank {rank}: no error" in said and does_without
            assert without or (f"rank {rank}: " in said and "Error: " in said), (nth, said)
        if "rank 0: DeviceError: GPU 0: cu" in said:
            assert "CUDA_ERROR_LAUNCH_FAILED" in said


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


@pytest.mark.parametrize("moment", ["made", "begun", "some out", "all out", "waiting"])
@pytest.mark.parametrize("how", ["dies", "leaves", "closes"])
def test_who_ends_in_a_round_parks_nobody(how: str, moment: str) -> None:
    script = """
plan = herring.PlannedReduction(
    [(300_000, "float32")] * 4, name="p", op="sum", device=0, buffer_bytes=1 << 20)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
other = herring.PlannedReduction([(10, "float32")], name="other", device=0)
moments = ["made", "begun", "some out", "all out", "waiting"]
how, last = os.environ["HOW"], moments.index(os.environ["MOMENT"])

def step():
    plan.begin()
    yield
    plan.ready_all([0, 1])
    yield
    plan.ready_all([2, 3])
    yield

herring.barrier()
if rank == 1:
    reached = step()
    if last == 4:
        try:
            for _ in range(3):
                next(reached)
            plan.wait()  # the other rank has not begun, and leaves
        except herring.HerringError:
            pass
        os._exit(0)
    for _ in range(last):
        next(reached)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "closes":
        plan.close()
        time.sleep(0.3)
    herring.shutdown()
    os._exit(0)
if last == 4:
    herring.shutdown()
    os._exit(0)
start = time.monotonic()
try:
    for _ in step():
        pass
    plan.wait()
    assert last == 3, "nothing has failed"  # all of it was out before rank 1 ended
except herring.HerringError as error:
    print(f"rank 0: {type(error).__name__}: {error}")
assert time.monotonic() - start < 4, time.monotonic() - start
# No stream waits for what does not come: this waits for all that is queued.
arena.scale(2)
arena.get()
driver.synchronize(0)
plan.close()
other.close()
print("nobody is parked")
"""
    layout = ["-n", "2", "--nodes", "2", "--keep-going"]
    job = run_job(layout, GPUS + script, HOW=how, MOMENT=moment, **ENVIRONMENT)
    assert how == "dies" or job.returncode == 0, job.stdout
    if moment != "waiting":
        assert "nobody is parked" in job.stdout, job.stdout


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


def test_a_call_behind_a_kernel_that_does_not_end_is_refused_on_all_ranks() -> None:
    script = """
import gc, weakref
array = GpuArray(np.full(100_000, 1.0, np.float32), tells=rank != 2)
herring.allreduce(array, "sum", name="warm")
herring.barrier()
start = time.monotonic()
if rank == 0:
    array.fill(1, 9_000_000)
    try:
        herring.allreduce(array, "sum", name="x", timeout=2)
    except herring.TimeoutError as error:
        assert "'x': GPU 0 has not reached the call after 2" in str(error), error
        assert "a kernel queued before the call has not finished" in str(error), error
        del error
    raises(herring.TimeoutError, "'list': GPU 0 has not reached the call after 0.",
           herring.grouped_allreduce, [array], name="list", timeout=0.1)
    # Its copy will still read the array.
    kept, address = weakref.ref(array), array.address
    array = None
    gc.collect()
    assert kept() is not None and kept().address == address
    array = GpuArray(np.full(100_000, 1.0, np.float32), device=1)
else:
    raises(herring.InvalidArgumentError, "allreduce 'x' was refused by rank 0 (", herring.allreduce,
           array, "sum", name="x")
    raises(herring.InvalidArgumentError, "): GPU 0 has not reached the call after 0.",
           herring.grouped_allreduce, [array], name="list")
    array.fill(1)
assert time.monotonic() - start < 8, "not before the kernel has ended"
for name in ("x", "list"):  # the next ones of these names, on another GPU
    herring.allreduce(array, "sum", name=name)
assert (array.get() == size * size).all()
if rank == 0:
    driver.synchronize(0)
for _ in range(50):  # with each call, arrays are let go of that nobody reads any more
    time.sleep(0.01)
    herring.barrier()
assert rank > 0 or kept() is None
herring.shutdown()
"""
    said = expect_success(
        run_job(["-n", "3"], GPUS + script, HERRING_WARN_AFTER="0.5", JITTER="0", **ENVIRONMENT)
    )
    assert "'x': GPU 0 has not reached the call after 0.5" in said, said  # a warning on rank 0
    assert re.search(r"rank 0 waits in allreduce 'x', which GPU 0 has not reached", said), said


@pytest.mark.parametrize("how", ["dies", "aborts", "leaves"])
def test_a_call_behind_a_kernel_that_does_not_end_hears_of_the_job(how: str) -> None:
    script = """
how = os.environ["HOW"]
array = GpuArray(np.full(100_000, 1.0, np.float32), tells=False)
half = herring.new_group([0, 1])
herring.barrier()
if rank == 0:
    array.fill(1, 3_600_000_000)
    handle = herring.allreduce_async(array, name="grouped", group=half)
    start = time.monotonic()
    text = "enough" if how == "aborts" else "rank 1"
    kind = herring.HerringError if how == "aborts" else herring.PeerLostError
    if how != "leaves":  # nobody tells then: it ends with its time
        raises(kind, text, herring.allreduce, array, name="x")
        raises(kind, text, handle.wait)
    raises(herring.HerringError, "", herring.allreduce, array, name="y", timeout=1)
    assert time.monotonic() - start < 20
    herring.shutdown()
    assert time.monotonic() - start < 40
    print("rank 0 has ended")
    sys.stdout.flush()
    os._exit(0)
time.sleep(0.5)
if rank == 1:
    {"dies": lambda: os.kill(os.getpid(), signal.SIGKILL), "leaves": herring.shutdown,
     "aborts": lambda: herring.abort("enough")}[how]()
"""
    job = run_job(["-n", "3", "--keep-going"], GPUS + script, HOW=how, JITTER="0", **ENVIRONMENT)
    assert "rank 0 has ended" in job.stdout, job.stdout
    assert "GPU 0 has not come to copies of calls that have ended" in job.stdout, job.stdout


def test_a_deadline_and_then_the_next_call() -> None:
    script = """
array = GpuArray(np.full(200_000, 1, np.float32))
if rank == 0:
    raises(herring.TimeoutError, "rank 1", herring.allreduce, array, name="late", timeout=1)
    array.fill(1)
else:
    time.sleep(2)
    raises(herring.TimeoutError, "'late'", herring.allreduce, array, name="late")
    array.fill(1)
herring.allreduce(array, "sum", name="late")
assert (array.get() == size).all()
if rank == 1:
    raises(herring.InvalidArgumentError, "int32", herring.allreduce,
           GpuArray(np.ones(3, np.int32)), "average", name="refused")
else:
    raises(herring.InvalidArgumentError, "was refused by rank 1", herring.allreduce,
           GpuArray(np.ones(3, np.float32)), "average", name="refused")
raises(herring.MismatchError, "'odd'", herring.allreduce,
       GpuArray(np.ones(3 + rank, np.float32)), name="odd")
herring.allreduce(array, "sum", name="late")
assert (array.get() == size * size).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], GPUS + script, **ENVIRONMENT))
