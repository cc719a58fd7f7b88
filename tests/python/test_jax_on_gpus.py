"""XLA's calls to Herring for JAX programs on GPUs of the stand-in for CUDA's driver.

The tests do not need JAX, because they make XLA's calls themselves (`xla_programs`).
"""

from __future__ import annotations

import pytest

from gpus import ENVIRONMENT, GPUS
from jobs import LAYOUTS, expect_success, run_job
from standin import STANDIN

pytestmark = [pytest.mark.timeout(150), STANDIN]

PROGRAMS = (
    GPUS
    + """
from herring import _core
from herring.arrays import runtime
from xla_programs import Program

_core.jax.attach(runtime.job())
runtime.forget_job.append(_core.jax.detach)
device = rank % gpus

def array(values):
    return GpuArray(values, device)
"""
)


@pytest.mark.parametrize("layout", ["alone", "one-node", "colocated-servers", "dedicated-servers"])
def test_programs_on_gpus_go_on_by_their_stream(layout: str) -> None:
    script = """
big, small = (array(np.zeros(n, np.float32)) for n in (300_000, 7))
small.stream = big.stream
program = Program(big)
assert program.version() == (0, 1)
place, other, gathered, part = (
    array(np.full(n, 5, np.float32)) for n in (300_000, 7, 7 * size, 4 if rank < 7 % size else 3))
rows = [7 // size + (r < 7 % size) for r in range(size)]
part = array(np.zeros(rows[rank], np.float32))
for one in (place, other, gathered, part):
    one.stream = big.stream
waits = driver.calls(b"cuStreamSynchronize")

def call(key, arrays, places, **attributes):
    assert program.start(key, arrays, places, **attributes) is None
    for one in arrays:
        if all(one is not place for place in places):
            one.fill(-1)  # from here on it may be overwritten
    assert program.finish(key, places) is None

for step in range(5):
    everybody = sum(r + step for r in range(size))
    begun = time.monotonic()
    big.fill(rank + step, 100_000)
    small.fill(rank, 1000)
    call("apart", [big, small], [place, other])
    place.scale(2)
    big.fill(rank + step)
    call("in place", [big, small], [big, small])
    small.fill(rank + step)
    call("scaled", [small], [small], op="average", prescale=2.0)
    took = time.monotonic() - begun
    assert step > 1 or took < 0.09, took  # two executions may be under way
    assert (place.get() == 2 * everybody).all(), (step, place.get()[:3], everybody)
    assert (big.get() == everybody).all(), (step, big.get()[:3])
    assert np.allclose(small.get(), 2 * everybody / size), (step, small.get()[:3])
    small.fill(rank + step)
    call("gather", [small], [gathered], kind="allgather")
    assert (gathered.get() == np.repeat([r + step for r in range(size)], 7)).all(), gathered.get()
    small.store(np.arange(7) + rank)
    call("scatter", [small], [part], kind="reduce_scatter")
    first = sum(rows[:rank])
    wanted = (np.arange(7) * size + sum(range(size)))[first : first + rows[rank]]
    assert (part.get() == wanted).all(), (part.get(), wanted)
    for root in range(size):
        small.fill(rank)
        call("from", [small], [small], kind="broadcast", root=root)
        assert (small.get() == root).all()
assert driver.calls(b"cuStreamSynchronize") == waits
assert driver.threads() == 1
_core.jax.settle(5.0)
_core.jax.check()
herring.shutdown()
"""
    expect_success(run_job(LAYOUTS[layout], PROGRAMS + script, **ENVIRONMENT))


def test_programs_on_a_gpu_meet_those_on_the_host() -> None:
    script = """
values = np.random.default_rng(rank).standard_normal(50_000).astype(np.float32)
reference = herring.allreduce(values.copy(), "average")
if rank == 0:
    mine = array(values)
    program = Program(mine)
    assert program.start("k", [mine], [mine], op="average") is None
    assert program.finish("k", [mine]) is None
    found = mine.get()
else:
    found = np.empty_like(values)
    one = lambda a: (a.view(np.uint8), "float32", 4, a.shape)
    _core.jax.run("allreduce", "k", "average", 0, "", 0, 1.0, 1.0, 0.0, "", [one(values)],
                  [one(found)])
assert (found.view(np.uint32) == reference.view(np.uint32)).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "3"], PROGRAMS + script, **ENVIRONMENT))


def test_a_host_runs_ahead_of_its_gpu_by_two_executions_of_a_call() -> None:
    script = """
mine = array(np.zeros(1_000_000, np.float32))
program = Program(mine)
start = time.monotonic()
for step in range(6):
    mine.fill(rank + step, 100_000)
    assert program.start("k", [mine], [mine]) is None
    assert program.finish("k", [mine]) is None
    ahead = step + 1 - int((time.monotonic() - start) / 0.1)
    assert ahead <= 3, ahead
assert time.monotonic() - start > 0.3
assert (mine.get() == sum(r + 5 for r in range(size))).all()
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], PROGRAMS + script, JITTER="0", **ENVIRONMENT))


# The program has already ended when the failure is known, so the next call reports it.
@pytest.mark.parametrize("how", ["dies", "disagrees", "is late"])
def test_what_fails_behind_a_program_is_nan_and_told_by_the_next_call(how: str) -> None:
    script = """
how = os.environ["HOW"]
mine = array(np.zeros(100_000, np.float32))
program = Program(mine)
assert program.start("k", [mine], [mine]) is None and program.finish("k", [mine]) is None
mine.get()
herring.barrier()
if rank == 1 and how == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and how == "is late":
    time.sleep(1.5)
agreement = str(rank) if how == "disagrees" else ""
error = program.start("k", [mine], [mine], agreement=agreement, timeout=0.5)
error = error or program.finish("k", [mine])
mine.scale(1)
begun = time.monotonic()
found = mine.get()  # no stream waits for what does not come
assert time.monotonic() - begun < 4
if error is None:
    assert np.isnan(found).all(), found[:3]
    error = program.start("k", [mine], [mine])
code, text = error
kind = {"dies": (14, "PeerLostError"), "disagrees": (3, "MismatchError"),
        "is late": (4, "TimeoutError")}[how]
assert code == kind[0] and text.startswith("herring." + kind[1]), error
print("told:", text, flush=True)
time.sleep(2 if rank == 0 and how == "is late" else 0)
os._exit(0)
"""
    job = run_job(
        ["-n", "2", "--keep-going"], PROGRAMS + script, HOW=how, JITTER="0", **ENVIRONMENT
    )
    assert job.stdout.count("told:") == (1 if how == "dies" else 2), job.stdout
    if "are undefined" in job.stdout:
        assert "'k': the results on GPU" in job.stdout


@pytest.mark.parametrize(
    "function", ["cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuStreamWaitValue32"]
)
def test_a_driver_that_refuses_a_call_is_an_error_of_the_program(function: str) -> None:
    script = """
mine = array(np.zeros(100_000, np.float32))
program = Program(mine)
for _ in range(2):
    assert program.start("k", [mine], [mine]) is None and program.finish("k", [mine]) is None
    mine.get()
driver.fail(os.environ["FUNCTION"].encode(), 1 if rank == 0 else 0, 719, False)
begun = time.monotonic()
error = program.start("k", [mine], [mine], timeout=2.0) or program.finish("k", [mine])
driver.fail(b"", 0, 0, False)
mine.get()
if rank == 0:
    assert error[0] == 13 and "herring.DeviceError: GPU 0: " in error[1], error
    assert os.environ["FUNCTION"] in error[1], error
assert time.monotonic() - begun < 4
herring.barrier()
print("all right")
herring.shutdown()
"""
    job = run_job(["-n", "2"], PROGRAMS + script, FUNCTION=function, JITTER="0", **ENVIRONMENT)
    assert expect_success(job).count("all right") == 2


def test_a_program_inside_a_capture_or_off_the_gpu_is_refused_for_all() -> None:
    script = """
mine = array(np.zeros(1000, np.float32))
program = Program(mine)
if rank == 0:
    import ctypes
    driver.capture(ctypes.c_void_p(mine.stream), True)
code, text = program.start("k", [mine], [mine]) or program.finish("k", [mine]) or (0, "")
if rank == 0:
    assert code == 3 and "captured for a CUDA graph" in text, text
    driver.capture(ctypes.c_void_p(mine.stream), False)
mine.get()
time.sleep(0.3)
if not code:
    code, text = program.start("l", [mine], [mine])
assert code == 3 and "captured for a CUDA graph" in text, text
program.token.address, there = np.zeros(8).ctypes.data, program.token.address
code, text = program.start("m", [mine], [mine])
assert code == 3 and "does not lie in the memory of a GPU" in text, text
program.token.address = there
herring.shutdown()
"""
    expect_success(run_job(["-n", "2"], PROGRAMS + script, JITTER="0", **ENVIRONMENT))
