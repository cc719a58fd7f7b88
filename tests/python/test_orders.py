"""Orders, numbers of calls, streams and sizes that no author of a program thought of."""

from __future__ import annotations

import pytest

from jobs import expect_success, run_job

pytestmark = pytest.mark.timeout(120)
FOUR_NODES = ["-n", "4", "--nodes", "4", "--servers", "1"]

OTHER_ORDERS = """
import random
herring.init()
rank, size = herring.rank(), herring.size()
for attempt, (elements, count) in enumerate(((20_000, 400), (20_000, 400), (200, 300))):
    arrays = [np.full(elements, rank + i, np.float32) for i in range(count)]
    order = list(range(count))
    random.Random(rank + 77 * attempt).shuffle(order)
    handles = [herring.allreduce_async(arrays[i], "sum", name=f"{attempt}.{i}") for i in order]
    for handle in handles:
        handle.wait()
    for i, array in enumerate(arrays):
        assert (array == size * i + size * (size - 1) / 2).all(), (i, array[0])
"""


@pytest.mark.parametrize("proxies", ["1", "2", "4"])
@pytest.mark.parametrize(
    "layout",
    [FOUR_NODES, ["-n", "4", "--nodes", "2", "--servers", "2"], ["-n", "3", "--nodes", "3"]],
    ids=["one-server", "two-servers", "colocated"],
)
def test_any_order_of_submission_on_every_rank(layout: list[str], proxies: str) -> None:
    expect_success(run_job(layout, OTHER_ORDERS, HERRING_PROXIES=proxies, HERRING_TIMEOUT="40"))


@pytest.mark.parametrize("proxies", ["1", "2", "4"])
def test_orders_differ_between_threads_too(proxies: str) -> None:
    script = """
    import random, threading
    herring.init()
    rank, size = herring.rank(), herring.size()
    failures = []
    def run(thread):
        try:
            names = [f"{thread}.{i}" for i in range(60)]
            random.Random(rank * 10 + thread).shuffle(names)
            arrays = {n: np.full(70_000 if n.endswith("0") else 100, rank, np.int64) for n in names}
            handles = [herring.allreduce_async(arrays[n], "sum", name=n) for n in names]
            for handle in handles:
                handle.wait()
            assert all((a == size * (size - 1) // 2).all() for a in arrays.values())
            gathered = herring.allgather(np.full(rank + 1, thread), name=f"g{thread}")
            assert len(gathered) == size * (size + 1) // 2 and (gathered == thread).all()
        except Exception as error:
            failures.append(error)
    threads = [threading.Thread(target=run, args=(t,)) for t in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures, failures
    """
    expect_success(run_job(FOUR_NODES, script, HERRING_PROXIES=proxies, HERRING_TIMEOUT="40"))


LATE = """
herring.init()
rank = herring.rank()
def loss(value, timeout=None):
    return herring.allreduce(np.array([value], np.float32), "sum", name="loss", timeout=timeout)[0]
assert loss(1.0) == 3
if rank != 2:
    raises(herring.TimeoutError, "rank 2 (", loss, 50.0, 0.3)
herring.barrier()
if rank == 2:  # too late for the others' second call, whose error it gets
    raises(herring.TimeoutError, "which did not call it", loss, 50.0)
assert loss(101.0) == 303
assert loss(1.0) == 3
# The same with arrays that are pushed.
large = np.full(100_000, 1.0, np.float32)
if rank != 1:
    raises(herring.TimeoutError, "rank 1 (", herring.allreduce, large.copy(), name="w", timeout=0.3)
herring.barrier()
if rank == 1:
    raises(herring.TimeoutError, "which did not call it", herring.allreduce, large.copy(), name="w")
assert (herring.allreduce(large * (rank + 1), "sum", name="w") == 6).all()
"""

REFUSED = """
herring.init()
rank, size = herring.rank(), herring.size()
bad, start = herring.InvalidArgumentError, time.monotonic()
ok = np.ones(4, np.float32)
text = "not supported" if rank == 1 else "refused by rank 1 ("
raises(bad, text, herring.allreduce, np.zeros(4, np.complex64) if rank == 1 else ok.copy())
raises(bad, "average" if rank == 0 else "by rank 0 (",
       herring.allreduce, np.ones(4, np.int32), "average" if rank == 0 else "sum", name="op")
raises(bad, "splits", herring.alltoall, np.ones(2 * size), [2] * size if rank != 1 else [1, 2])
raises(bad, "integers", herring.alltoall, np.ones(3), [1.9, 1.1, 0])
raises(bad, "dimension" if rank == 2 else "rank 2", herring.allgather, np.float32(1)
       if rank == 2 else ok)
raises(bad, "root is 99" if rank == 1 else "rank 1", herring.reduce, ok.copy(), "sum",
       99 if rank == 1 else 0)
raises(herring.MismatchError, "splits [4, 0", herring.reduce, ok.copy(), "sum", int(rank == 1))
raises(bad, "dimension" if rank == 2 else "rank 2", herring.gather, np.float32(1)
       if rank == 2 else ok)
raises(herring.MismatchError, "gather to rank 1", herring.gather, ok, int(rank == 1))
raises(bad, "no elements", herring.alltoall, np.ones((size, 0)))
raises(bad, "splits is [1]" if rank == 0 else "rank 0", herring.scatter, ok, 0, [1])
raises(bad, "dimension" if rank == 0 else "rank 0", herring.scatter, 1.5)
raises(bad, "splits is [1]", herring.reduce_scatter, ok, "sum", [1])
raises(Exception, "pickle" if rank == 0 else "rank 0", herring.broadcast_object,
       (i for i in ()) if rank == 0 else None)
raises(Exception, "pickle" if rank == 1 else "rank 1", herring.allgather_object,
       (i for i in ()) if rank == 1 else 1)
raises(bad, "timeout is -1" if rank == 1 else "rank 1", herring.barrier,
       timeout=-1 if rank == 1 else None)
raises(bad, "name has 600", herring.barrier, name="n" * 600)
# Plans and series: what one rank cannot make, nobody makes, and the next one works.
raises(bad, "complex64" if rank == 1 else "refused by rank 1 (",
       herring.PlannedReduction, [(8, "complex64" if rank == 1 else "float32")], name="plan")
raises(bad, "elements is -8" if rank == 2 else "refused by rank 2 (",
       herring.PlannedReduction, [(-8 if rank == 2 else 8, "float32")], name="plan")
plan = herring.PlannedReduction([(8, "float32")], name="plan")
plan.arena(0).view(np.float32)[:8] = rank
plan.begin()
plan.ready(0)
plan.wait()
assert (plan.arena(0).view(np.float32)[:8] == 1).all()
raises(Exception, "99" if rank == 0 else "rank 0", herring.allreduce, ok.copy(),
       sync=herring.Quorum(99 if rank == 0 else 1), name="series")
# A name in flight: the second call is rank 0's alone to refuse, and it counts.
if rank == 0:
    first = herring.allreduce_async(ok.copy(), "sum", name="twice")
    raises(bad, "in flight", herring.allreduce_async, ok.copy(), "sum", name="twice")
herring.barrier()  # before the others call it, it cannot be complete
if rank != 0:
    assert herring.allreduce(ok.copy(), "sum", name="twice")[0] == size
    raises(bad, "rank 0", herring.allreduce, ok.copy(), "sum", name="twice")
if rank == 0:
    first.wait()
assert herring.allreduce(ok.copy(), "sum", name="twice")[0] == size
assert herring.allreduce(ok.copy(), "sum")[0] == size
assert time.monotonic() - start < 30, "somebody was told at the deadline"
"""


@pytest.mark.parametrize("layout", [["-n", "3"], ["-n", "3", "--nodes", "3", "--servers", "1"]])
@pytest.mark.parametrize("script", [LATE, REFUSED], ids=["late", "refused"])
def test_every_rank_gets_the_error_of_its_own_call(layout: list[str], script: str) -> None:
    expect_success(run_job(layout, script, HERRING_TIMEOUT="60", HERRING_PROXIES="2"))


@pytest.mark.parametrize("credit", ["0", "1MiB", "8192"])
def test_many_plans_at_once_keep_to_the_credit(credit: str) -> None:
    script = """
    herring.init()
    size = herring.size()
    plans = [
        herring.PlannedReduction([(131_072, "float32")], name=f"p{i}", buffer_bytes=1 << 19)
        for i in range(180)
    ]
    for step in range(2):
        for i, plan in enumerate(plans):
            plan.arena(0).view(np.float32)[:] = i + herring.rank() + step
        if herring.rank() == 1:
            herring.barrier()  # all of rank 0's wait for this one
        for plan in plans:
            plan.begin()
            plan.ready(0)
        if herring.rank() == 0:
            herring.barrier()
        for i, plan in enumerate(plans):
            plan.wait()
            assert (plan.arena(0).view(np.float32) == i + (size - 1) / 2 + step).all(), i
    """
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    expect_success(run_job(layout, script, HERRING_CREDIT=credit, HERRING_TIMEOUT="40"))


def test_the_largest_frames_and_small_operations_that_settings_allow() -> None:
    script = """
    herring.init()
    rank, size = herring.rank(), herring.size()
    elements = 15_000_000
    array = np.full(elements, rank, np.float32)
    assert (herring.allreduce(array, "sum") == 1).all()
    everything_to_one = [elements, 0] if rank == 0 else [elements, 0]
    got = herring.alltoall(np.full(elements, rank, np.float32), everything_to_one)
    assert len(got) == (2 * elements if rank == 0 else 0)
    gathered = herring.allgather(array[:6_000_000])
    assert len(gathered) == 12_000_000 and (gathered == 1).all()
    """
    layout = ["-n", "2", "--nodes", "2", "--servers", "1"]
    large = {"HERRING_SMALL_BYTES": "64MiB", "HERRING_FRAME_MAX": "64MiB"}
    for segment in ("8192", "1MiB"):
        expect_success(
            run_job(layout, script, HERRING_SEGMENT_BYTES=segment, HERRING_CREDIT="128MiB", **large)
        )
