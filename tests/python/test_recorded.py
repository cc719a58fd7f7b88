"""Tests what a worker records of its rounds and calls, and what it says that its program does."""

from __future__ import annotations

import tempfile
import textwrap

import pytest

from jobs import LAYOUTS, expect_success, run_job

# Every script has the entries of this rank by name, and checks the order of an entry's moments.
TOOLS = """
from herring.arrays.runtime import job
from herring.planned import PlannedReduction
from support import tell, tell_when_waiting, told, until, waits

begun = time.monotonic()
MOMENTS = ("called", "ready", "reduced", "pushed", "summed", "done")

def entries(kind, name):
    found = [one for one in job().recorded() if (one["kind"], one["name"]) == (kind, name)]
    for one in found:
        times = [one[moment] for moment in MOMENTS if one[moment] is not None]
        assert times == sorted(times), one
        assert all(begun < at < time.monotonic() for at in times), one
    return found

def entry(kind, name):
    (one,) = entries(kind, name)
    return one

herring.init()
rank, size = herring.rank(), herring.size()
"""


def ran(layout: str, script: str, **environment: str) -> str:
    """Runs the script with `TOOLS` on every rank, and returns the output."""
    script = TOOLS + textwrap.dedent(script)
    with tempfile.TemporaryDirectory() as folder:
        return expect_success(run_job(LAYOUTS[layout], script, FOLDER=folder, **environment))


ROUNDS = """
plan = PlannedReduction([(60_000, "float32")] * 4, name="net", buffer_bytes=1 << 18)
for n in range(3):
    plan.begin()
    if rank == 0:
        told(*(f"waits {other} {n}" for other in range(1, size)))
        time.sleep(0.1)
    for i in range(4):
        plan.ready(i)
    if rank > 0:  # for rank 0
        tell_when_waiting(f"waits {rank} {n}")
    plan.wait()

rounds = entries("round", "net")
assert [one["round"] for one in rounds] == [0, 1, 2]
for one in rounds:
    assert one["outcome"] == "ok" and one["bytes"] == sum(b for _, b in plan.arenas)
    assert None not in (one["called"], one["ready"], one["done"]), one
    buffers = [b for b in entries("buffer", "net") if b["round"] == one["round"]]
    assert [(b["buffer"], b["bytes"]) for b in buffers] == [
        (i, bytes) for i, (_, _, bytes) in enumerate(plan.buffers)
    ]
    for b in buffers:
        assert b["outcome"] == "ok" and b["stream"] == one["stream"], b
        assert b["ready"] <= one["ready"] and b["done"] <= one["done"], (b, one)
        assert (b["pushed"] is None) == (os.environ["PUSHES"] == "no"), b
        assert (b["reduced"] is None) == (os.environ["REDUCES"] == "no"), b
    if rank == 0:
        assert one["ready"] - one["called"] > 0.1, one
    else:  # it waits for the rank that sleeps
        assert one["done"] - one["ready"] > 0.1 and one["waited"] > 0, one
seen = job().activity()
assert seen["where"] == "" and seen["rounds"] == 3 and seen["in_flight"] == 0, seen
assert abs(seen["waited"] - sum(one["waited"] for one in job().recorded())) < 1e-6, seen
"""


@pytest.mark.parametrize(
    ("layout", "reduces", "pushes"),
    [
        ("one-node", "yes", "no"),
        ("colocated-servers", "no", "yes"),
        ("dedicated-servers", "yes", "yes"),
    ],
)
def test_rounds_and_their_buffers_are_recorded(layout: str, reduces: str, pushes: str) -> None:
    ran(layout, ROUNDS, REDUCES=reduces, PUSHES=pushes)


CALLS = """
large = np.ones(1 << 18, np.float32)
herring.allreduce(np.ones(3, np.float32), name="small")
herring.allreduce(large, name="large")
herring.allreduce(large, name="ring", algorithm="ring")
herring.broadcast(large, 0, name="cast")
herring.allgather(large, name="gather")
herring.reduce_scatter(np.ones((size * 1000, 16), np.float32), name="scatter")
herring.alltoall(np.ones(size * 40_000, np.float32), name="all")
herring.barrier(name="here")
herring.grouped_allreduce([large, np.ones(5, np.int32)], op="sum", name="list")
if rank == 0:
    herring.send(large, 1)
if rank == 1:
    herring.receive(large, 0)
names = ["allreduce 'small'", "allreduce 'large'", "allreduce 'ring'", "broadcast 'cast'",
         "allgather 'gather'", "reduce_scatter 'scatter'", "alltoall 'all'", "barrier 'here'",
         "allreduce 'list'"]
calls = [one for one in job().recorded() if one["kind"] == "call"]
kinds = {0: ["send"], 1: ["receive"]}.get(rank, [])
assert [one["name"] for one in calls[: len(names)]] == names, calls
assert [one["name"].split()[0] for one in calls[len(names) :]] == kinds, calls
names = [one["name"] for one in calls]
for name in names:
    one = entry("call", name)
    assert one["outcome"] == "ok", one
    assert None not in (one["called"], one["ready"], one["done"]), one
    assert (one["bytes"] > 0) == (name != "barrier 'here'"), one
assert entry("call", "allreduce 'large'")["bytes"] == 1 << 20
assert entry("call", "allreduce 'list'")["bytes"] == (1 << 20) + 20
if herring.num_nodes() > 1:
    assert entry("call", "allreduce 'large'")["pushed"] is not None
if herring.local_size() > 1:
    assert entry("call", "allreduce 'large'")["reduced"] is not None
assert job().activity()["in_flight"] == 0
"""


@pytest.mark.parametrize("layout", ["one-node", "colocated-servers", "uneven-nodes"])
def test_named_calls_are_recorded(layout: str) -> None:
    ran(layout, CALLS)


def test_groups_have_entries_of_their_own() -> None:
    ran(
        "dedicated-servers",
        """
        pair = herring.new_group([0, 1] if rank < 2 else [2, 3], name=f"pair{rank // 2}")
        herring.allreduce(np.ones(1 << 16, np.float32), name="x", group=pair)
        herring.allreduce(np.ones(1 << 16, np.float32), name="x")
        inside, world = entries("call", "allreduce 'x'")
        assert inside["group"] != 0 and world["group"] == 0, (inside, world)
        plan = PlannedReduction([(5000, "float32")], name="net", group=pair)
        plan.begin()
        plan.ready(0)
        plan.wait()
        assert entry("round", "net")["group"] == inside["group"]
        assert entry("buffer", "net")["group"] == inside["group"]
        """,
    )


def test_a_failure_ends_all_entries_with_its_reason() -> None:
    job = run_job(
        [*LAYOUTS["dedicated-servers"], "--keep-going"],
        TOOLS
        + """
plan = PlannedReduction([(1 << 20, "float32")], name="net")
for n in range(2):
    if n == 1 and rank == 3:
        for _ in range(3):
            herring.receive(np.ones(1))  # the others have begun
        os.kill(os.getpid(), signal.SIGKILL)
    plan.begin()
    plan.ready(0)
    call = herring.allreduce_async(np.ones(1 << 20, np.float32), name=f"x{n}")
    if n == 0:
        plan.wait()
        call.wait()
herring.send(np.ones(1), 3)
raises(herring.PeerLostError, "rank 3", plan.wait)
raises(herring.PeerLostError, "rank 3", call.wait)
raises(herring.PeerLostError, "rank 3", lambda: herring.barrier(name="afterwards"))
rounds = entries("round", "net")
assert [one["outcome"] for one in rounds] == ["ok", "peer lost"], rounds
buffers = entries("buffer", "net")
assert {one["outcome"] for one in buffers if one["round"] == 0} == {"ok"}, buffers
assert {one["outcome"] for one in buffers if one["round"] == 1} == {"peer lost"}, buffers
assert entry("call", "allreduce 'x1'")["outcome"] == "peer lost"
assert entry("call", "barrier 'afterwards'")["outcome"] == "peer lost"
assert job().activity()["in_flight"] == 0
print("all have ended")
""",
        grace=10,
    )
    assert job.stdout.count("all have ended") == 3, job.stdout[-4000:]


def test_every_kind_of_end_is_told_apart() -> None:
    ran(
        "dedicated-servers",
        """
        if rank == 0:
            raises(herring.TimeoutError, "alone",
                   lambda: herring.barrier(name="alone", timeout=0.3))
            one = entry("call", "barrier 'alone'")
            assert one["outcome"] == "timeout" and one["waited"] > 0, one
        herring.barrier(name="after")
        x = np.ones(4 + rank % 2, np.float32)
        raises(herring.MismatchError, "'odd'", lambda: herring.allreduce(x, name="odd"))
        assert entry("call", "allreduce 'odd'")["outcome"] == "mismatch"
        first = herring.allreduce_async(np.ones(4, np.float32), name=f"only {rank}")
        raises(herring.InvalidArgumentError, "'only",
               lambda: herring.allreduce_async(np.ones(4, np.float32), name=f"only {rank}"))
        one, twice = entries("call", f"allreduce 'only {rank}'")
        assert twice["outcome"] == "invalid argument", twice
        assert one["outcome"] is None and one["done"] is None, one
        assert job().activity()["in_flight"] == 1
        ends = job()
        herring.barrier(name="before the end")
        herring.shutdown()
        found = [one["outcome"] for one in ends.recorded(1000) if "only" in one["name"]]
        assert found[0] in ("shutdown", "peer lost") and found[1:] == ["invalid argument"], found
        assert len(ends.recorded(2)) == 2 and ends.recorded(0) == []
        """,
    )


def test_waits_of_several_threads_and_in_slices_count_once() -> None:
    ran(
        "one-node",
        """
        import threading
        herring.barrier(name="together")
        before = job().activity()["waited"]
        if rank == 0:
            told(*(f"seen {other}" for other in range(1, size)))
            time.sleep(0.1)
            herring.allreduce(np.ones(1), name="late")
        else:
            call = herring.allreduce_async(np.ones(1), name="late")
            start = time.monotonic()
            threads = [threading.Thread(target=call.wait) for _ in range(3)]
            for one in threads:
                one.start()
            until(lambda: waits("waits in allreduce 'late'"))
            assert start < job().activity()["since"] < time.monotonic()
            tell(f"seen {rank}")
            for one in threads:
                one.join()
            took = time.monotonic() - start
            waited = job().activity()["waited"] - before
            assert 0 < waited <= took, (waited, took)
            late = entry("call", "allreduce 'late'")
            assert abs(late["waited"] - waited) < 1e-6, (late, waited)
            assert job().activity()["where"] == ""
        """,
    )


def test_partial_rounds_are_recorded() -> None:
    ran(
        "dedicated-servers",
        """
        from herring.partial import PartialReduction, Quorum
        for elements in (10, 100_000):  # within a message, and through the servers
            name = f"partial{elements}"
            series = PartialReduction(elements, "float32", sync=Quorum(size), name=name)
            x = np.ones(elements, np.float32)
            for _ in range(3):
                series.allreduce(x)
            assert len(list(series.flush(x))) == 1
            rounds = entries("round", name)
            assert [one["round"] for one in rounds] == [0, 1, 2, 3], rounds
            for one in rounds:
                assert one["outcome"] == "ok" and one["bytes"] == 4 * elements, one
                assert None not in (one["called"], one["ready"], one["pushed"], one["done"]), one
        assert job().activity()["in_flight"] == 0, job().recorded()
        """,
    )


def test_nothing_is_recorded_if_the_job_does_not_observe() -> None:
    ran(
        "dedicated-servers",
        """
        herring.allreduce(np.ones(1 << 18, np.float32), name="x")
        assert job().recorded() == []
        seen = job().activity()
        assert seen["calls"] == 1 and seen["in_flight"] == 0 and seen["waited"] > 0, seen
        """,
        HERRING_OBSERVE="false",
    )
