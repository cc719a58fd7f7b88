"""Memory is detached before it is freed: closing, freeing and leaving at any moment harm nobody."""

from __future__ import annotations

import pytest

from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(120)
LAYOUTS = {
    "direct": ["-n", "2", "--nodes", "2"],
    "one-node": ["-n", "2"],
    "node-stage": ["-n", "5", "--nodes", "2", "--servers", "1"],
}

# Rank 1 closes a plan all of whose gradients are ready: the others' round is right, and so is what
# comes after it. They contribute only when they know that it is closed.
CLOSED_WHEN_READY = """
herring.init()
rank, size = herring.rank(), herring.size()
for wire in (None, "bfloat16"):
    for again in range(3):
        plan = herring.PlannedReduction([(400_000, "float32"), (3, "float32")], wire_dtype=wire)
        plan.begin()
        plan.arena(0).view("float32")[:] = rank
        if rank == 1:
            plan.ready(1)
            plan.ready(0)
            plan.close()
            others = [herring.empty(400_000) for _ in range(4)]
            for one in others:
                one[:] = -1
        herring.barrier()
        if rank != 1:
            plan.ready(0)
            plan.ready(1)
            plan.wait()
            values = plan.arena(0).view("float32")
            assert (values[:400_000] == (size - 1) / 2).all(), values[:4]
            assert plan.contributors == size
            plan.close()
        herring.barrier()
        if rank == 1:  # what it got since then is its own
            assert all((one == -1).all() for one in others)
            del one, others
total = np.full(100_000, rank, np.float32)
herring.allreduce(total, "sum")
assert (total == size * (size - 1) / 2).all()
"""


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_plan_closed_in_a_round_that_is_ready_finishes_it(layout: list[str]) -> None:
    expect_success(run_job(layout, CLOSED_WHEN_READY, timeout=90))


# Rank 1 closes a plan before all is ready: nobody can finish that round. Everybody learns why.
CLOSED_TOO_EARLY = """
herring.init()
rank = herring.rank()
plan = herring.PlannedReduction([(400_000, "float32")] * 3, name="p", buffer_bytes=1 << 20)
start = time.monotonic()
def average():
    plan.begin()
    for i in range(3):
        plan.ready(i)
    plan.wait()
if rank == 1:
    view = plan.arena(0)
    view[:] = 1
    plan.begin()
    plan.ready(1)
    plan.ready(0)
    plan.close()
    view.sum()  # outlives the plan
    own = herring.empty(1_200_000)
    own[:] = -1
    raises(herring.ShutdownError, "'p' was closed inside round 0, before gradients 2 were ready",
           lambda: [herring.barrier() for _ in range(100)])
    assert (own == -1).all()
    view[:] = 4
else:
    raises(herring.PeerLostError, "'p' was closed inside round 0", average)
    plan.close()
took = time.monotonic() - start
assert took < 20, took  # long before HERRING_TIMEOUT
print("told", flush=True)
"""


@pytest.mark.parametrize(
    "layout", [LAYOUTS["direct"], LAYOUTS["one-node"], ["-n", "4", "--nodes", "2"]]
)
def test_a_plan_closed_too_early_fails_the_job_everywhere(layout: list[str]) -> None:
    output = expect_success(run_job(layout, CLOSED_TOO_EARLY, timeout=90))
    assert output.count("told") == int(layout[1]), output


# Rank 1 leaves, or gives up, with operations of every kind in flight, and frees and reuses at once
# what they read and wrote. Which moment that meets is chance, so it is done at several.
LEFT_IN_FLIGHT = """
import gc
rank_of_victim, delay = 1, float(os.environ["DELAY"])
herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(1_000_000, "float32")] * 2, buffer_bytes=1 << 20)
shared, private = herring.empty(1_000_000), np.ones(1_000_000, np.float32)
rows = np.ones((size, 200_000), np.float32)
handles = []
def begin():
    handles.append(herring.allreduce_async(shared, name="shared"))
    handles.append(herring.allreduce_async(private, name="private"))
    if rank != size - 1 or rank == rank_of_victim:
        plan.begin()
        plan.ready(0)
        plan.ready(1)
try:
    herring.barrier()
    begin()
    if rank == rank_of_victim:
        time.sleep(delay)
        herring.abort("enough") if os.environ["HOW"] == "abort" else herring.shutdown()
        plan.close()
        for array in (shared, private, rows):
            array[:] = 7
        handles.clear()
        del plan, shared, private, rows
        gc.collect()
        print("left", flush=True)
    else:
        for handle in handles:
            handle.wait()
        plan.wait()
        while True:
            herring.allreduce(private)
except (herring.PeerLostError, herring.ShutdownError, herring.InvalidArgumentError) as error:
    print("left", flush=True)
"""


@pytest.mark.parametrize("how", ["shutdown", "abort"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_leaving_with_operations_in_flight(layout: list[str], how: str) -> None:
    for delay in ("0", "0.002", "0.01"):
        job = run_job(layout, LEFT_IN_FLIGHT, timeout=60, grace=8, HOW=how, DELAY=delay)
        assert "SIGSEGV" not in job.stdout and "SIGABRT" not in job.stdout, job.stdout[-4000:]
        assert job.stdout.count("left") == int(layout[1]), job.stdout[-4000:]


# Each buffer of these plans is one segment, which one local rank of a node pushes for all.
CONTRIBUTORS = """
herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(5, "float32")])
for step in range(size + 1):
    active = rank >= step
    plan.begin(active)
    plan.arena(0).view("float32")[:5] = 1
    if active:
        plan.ready(0)
    plan.wait()
    assert plan.contributors == size - step, (step, rank, plan.contributors)
"""


@pytest.mark.parametrize("servers", ["0", "2"])
def test_all_ranks_know_the_contributors_of_a_small_buffer(servers: str) -> None:
    layout = ["-n", "6", "--nodes", "2", "--servers", servers]
    expect_success(run_job(layout, CONTRIBUTORS))


def test_daemon_threads_may_wait_when_the_interpreter_ends() -> None:
    """Their waits end while Python does: a thread that then asked for the GIL ended the process."""
    for _ in range(3):
        expect_success(
            run_job(
                ["-n", "2"],
                """
        import threading
        herring.init()
        all_there = threading.Barrier(31)
        def wait(number):
            all_there.wait()
            try:
                herring.allreduce(np.zeros(10), name=f"never.{herring.rank()}.{number}")
            except herring.HerringError:
                pass
            while True:
                herring.is_initialized()
        for number in range(30):
            threading.Thread(target=wait, args=(number,), daemon=True).start()
        all_there.wait()
        time.sleep(0.1)
    """,
            )
        )
