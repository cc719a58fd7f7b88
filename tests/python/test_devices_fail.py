"""Kernels that do not end, drivers that fail and ranks that leave: every rank gets an error."""

from __future__ import annotations

import re

import pytest

from gpu_scripts import GPUS
from gpus import ENVIRONMENT
from jobs import expect_success, run_job
from standin import STANDIN

pytestmark = [pytest.mark.timeout(150), STANDIN]


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
