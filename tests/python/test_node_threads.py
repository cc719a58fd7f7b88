"""Several threads of a rank add what the ranks of a node share: right, alike, and gone in time."""

from __future__ import annotations

import re

import pytest

from jobs import LAYOUTS, REDUCTIONS, expect_success, run_job

pytestmark = pytest.mark.timeout(120)

HELPERS = """
def helpers():
    found = 0
    for task in os.listdir("/proc/self/task"):
        try:
            found += open(f"/proc/self/task/{task}/comm").read().strip() == "herring-adder"
        except OSError:
            pass  # a thread that has just ended
    return found
"""

RIGHT = (
    HELPERS
    + REDUCTIONS
    + """
herring.init()
rank, size = herring.rank(), herring.size()
herring.allreduce(np.ones(20_000, np.float32))
assert helpers() == 0, "of an array of 80 kB"
digest = hashlib.sha256()
for step, dtype in enumerate((np.float32, np.float64, np.float16)):
    for count in (1_500_007, 400_001):
        random = np.random.default_rng([rank, step, count])
        array = random.standard_normal(count).astype(dtype)
        herring.allreduce(array, "average")
        digest.update(array)
gradients = [(700_001, "float32"), (1_300_000, "float32"), (3, "float32")]
for wire in (None, "float16"):
    plan = herring.PlannedReduction(gradients, name=f"p{wire}", wire_dtype=wire)
    arena = plan.arena(0).view(np.float32)
    for step in range(3):
        plan.begin()
        arena[:] = np.random.default_rng([rank, step]).standard_normal(arena.size)
        plan.ready_all([0, 1, 2])
        plan.wait()
        digest.update(arena)
for found in (herring.allgather(np.arange(2_000_000.0) + rank),
              herring.alltoall(np.arange(size * 400_000.0) + rank)):
    herring.broadcast(found, 0)
    digest.update(found)
parts = herring.reduce_scatter(np.arange(900_000.0) + rank, "sum")
herring.allreduce(parts[:1000], "sum")
digest.update(parts[:1000])
threads = int(os.environ["HERRING_NODE_THREADS"])
assert herring.local_size() == 1 or helpers() == threads - 1, helpers()
check_reductions((1_200_007,))
print("digest", digest.hexdigest())
herring.shutdown()
assert helpers() == 0, "after shutdown()"
"""
)


@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers", "uneven-nodes"])
def test_the_bits_are_those_of_one_thread(layout: str) -> None:
    found = set()
    for threads in ("1", "3"):
        said = expect_success(run_job(LAYOUTS[layout], RIGHT, HERRING_NODE_THREADS=threads))
        found |= set(re.findall(r"digest (\w+)", said))
    assert len(found) == 1, found


def test_there_is_none_where_every_core_has_a_rank() -> None:
    script = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
herring.init()
herring.allreduce(np.ones(3_000_000, np.float32))
assert helpers() == 0
"""
    expect_success(run_job(["-n", "2"], HELPERS + script))


# A rank dies, or forks, or leaves while others add.
ENDING = (
    HELPERS
    + """
import threading
herring.init()
rank = herring.rank()
array = herring.empty(3_000_000)
array[:] = 1
herring.allreduce(array, "max")
assert helpers() == 2
how = os.environ["HOW"]
if how == "forks":
    for step in range(20):
        child = os.fork()
        if child == 0:
            assert helpers() == 0
            sys.exit(0)  # the interpreter ends, with all that it has of the job
        herring.allreduce(array, "max")
        assert os.waitpid(child, 0)[1] == 0
elif rank == 1:
    ends = {"dies": lambda: os.kill(os.getpid(), signal.SIGKILL), "leaves": herring.shutdown,
            "aborts": lambda: herring.abort("enough")}
    threading.Timer(0.3, ends[how]).start()
try:
    for step in range(100_000 if how != "forks" else 1):
        herring.allreduce(array, "max")
        array[:] = 1
    assert how == "forks"
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}")
del array
herring.shutdown()
assert helpers() == 0
print(f"rank {rank} has ended")
"""
)


@pytest.mark.parametrize("how", ["forks", "dies", "leaves", "aborts"])
def test_whoever_ends_leaves_nothing_behind(how: str) -> None:
    job = run_job(["-n", "3", "--keep-going"], ENDING, HERRING_NODE_THREADS="3", HOW=how)
    ranks = {0, 2} if how == "dies" else {0, 1, 2}
    for rank in ranks:
        assert f"rank {rank} has ended" in job.stdout, job.stdout[-4000:]
        assert how == "forks" or f"rank {rank}: " in job.stdout, job.stdout[-4000:]
