"""join(): ranks with fewer all-reduces than others."""

from __future__ import annotations

import pytest

from jobs import LAYOUTS, expect_success, run_job, seconds_until_known

pytestmark = pytest.mark.timeout(120)

UNEVEN = """
import threading
herring.init()
r, n = herring.rank(), herring.size()
bad, differ = herring.InvalidArgumentError, herring.MismatchError
group = herring.new_group(range(n), name="all")
part = herring.new_group(range(0, n, 2)) if r % 2 == 0 else None

def uneven(steps, scope, ranks, count, dtype, op, make):
    # Rank k of the scope calls steps(k) times, each with its own value; then joins.
    k = scope.rank if scope else r
    for step in range(steps(k)):
        array = make(count, dtype)
        array[:] = k + 1 + step
        herring.allreduce(array, op, group=scope)
        values = [x + 1 + step for x in range(ranks) if steps(x) > step]
        expected = {"sum": sum, "max": max, "min": min,
                    "average": lambda v: np.float32(sum(v)) / np.float32(len(v))}[op](values)
        assert (array == np.dtype(dtype).type(expected)).all(), (count, op, step, array[:3])
    return herring.join(group=scope)

def numpy_empty(count, dtype):
    return np.empty(count, dtype)

scopes = [(None, n), (group, n)] + ([(part, part.size)] if part is not None else [])
for scope, ranks in scopes:
    for count in (3, 70_000, 400_001):
        for dtype, op in (("float32", "average"), ("float64", "sum"), ("int32", "max"),
                          ("float16", "average"), ("uint8", "min")):
            for make in (numpy_empty, herring.empty):
                last = uneven(lambda k: k % 3, scope, ranks, count, dtype, op, make)
                assert 0 <= last < ranks
    # Nobody has anything; only one has; all have the same.
    assert 0 <= uneven(lambda k: 0, scope, ranks, 5, "float32", "sum", numpy_empty) < ranks
    uneven(lambda k: 3 * (k == 0), scope, ranks, 300_000, "float32", "sum", numpy_empty)
    uneven(lambda k: 2, scope, ranks, 300_000, "float32", "sum", numpy_empty)
    herring.barrier(group=scope)

# Many at once, in another order on each rank, and some that a rank called before it joined.
rng = np.random.default_rng(r)
for round in range(5):
    names = [f"n{i}" for i in range(12)]
    mine = [x for x in names if (int(x[1:]) + r + round) % (n + 1)]
    rng.shuffle(mine)
    handles = {x: herring.allreduce_async(np.full(3 if int(x[1:]) % 2 else 90_000, r + 1.0), "sum",
                                          name=x) for x in mine}
    last = herring.join()
    for x, handle in handles.items():
        callers = [q for q in range(n) if (int(x[1:]) + q + round) % (n + 1)]
        assert (handle.wait() == sum(q + 1 for q in callers)).all(), (round, x, callers)
    assert set(herring.allgather_object(last)) == {last}

# Grouped ones; then a collective that cannot do without, and the next that can.
for step in range(1 + (r == 0)):
    arrays = [np.full(c, r + 1.0, np.float32) for c in (3, 50_000, 7)]
    herring.grouped_allreduce(arrays, "sum")
    expected = n * (n + 1) / 2 if step == 0 else 1
    assert all((array == expected).all() for array in arrays), step
herring.join()
if n > 1:
    late = r == n - 1
    if not late:
        raises(differ, f"rank {n - 1} called join()", herring.broadcast, np.ones(4, "f"))
        raises(differ, f"rank {n - 1} called join()", herring.allreduce, np.ones(4, "f"),
               algorithm="ring")
        assert herring.allreduce(np.ones(4, "f"), "sum")[0] == n - 1
    herring.join()

# What a thread calls of a rank that has joined, and waits for others.
if n == 1:
    herring.join()
elif r == 0:
    thread = threading.Thread(target=herring.join)
    thread.start()
    before = []
    while True:
        try:
            before.append(herring.allreduce_async(np.ones(1, "f"), "sum", name=f"n{len(before)}"))
            time.sleep(0.001)
        except bad as error:
            assert "after join()" in str(error), error
            break
    raises(bad, "after join()", herring.barrier)
    raises(bad, "after join()", herring.join)
    raises(bad, "after join()", herring.send_async, np.ones(1), 1)
    herring.barrier(group=group)
    thread.join()
    assert all(handle.wait() == 1 for handle in before)
else:
    herring.barrier(group=group)
    herring.join()
group.destroy()
if part is not None:
    part.destroy()
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_reduces_go_on_without_those_who_joined(layout):
    expect_success(run_job(LAYOUTS[layout], UNEVEN, timeout=100))


DEATH = """
import threading
herring.init()
r, victim, joined = herring.rank(), int(os.environ["VICTIM"]), bool(os.environ["JOINED"])
herring.barrier()
start = time.monotonic()
if r == victim:
    if joined:
        threading.Thread(target=herring.join, daemon=True).start()
        time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while r == 0:
        herring.allreduce(np.ones(200_000, np.float32))
    herring.join()
except herring.PeerLostError as error:
    assert f"rank {victim}" in str(error), error
    print(f"learned in {time.monotonic() - start:.3f} s", flush=True)
"""


@pytest.mark.parametrize("joined", ["", "yes"])
@pytest.mark.parametrize("layout", ["one-node", "dedicated-servers"])
def test_a_death_ends_a_join(layout, joined):
    ranks = 3 if layout == "one-node" else 4
    seconds, output = seconds_until_known(
        LAYOUTS[layout], DEATH, victim=ranks - 1, survivors=ranks - 1, JOINED=joined
    )
    assert seconds < 20, output


INTERRUPTED = """
herring.init()
r = herring.rank()
raises(herring.InvalidArgumentError, "'herring.join' is reserved", herring.allreduce,
       np.ones(3, "f"), name="herring.join")
group = herring.new_group(range(herring.size()))
if r == 0:
    def interrupt(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGUSR1, interrupt)
pids = herring.allgather_object(os.getpid())
if r == 0:
    try:
        herring.join()
    except KeyboardInterrupt:
        herring.barrier(group=group)
    while True:  # it has joined all the same: until the others have, calls are refused
        try:
            herring.allreduce(np.ones(3, "f"))
            break
        except herring.InvalidArgumentError:
            time.sleep(0.001)
else:
    for _ in range(5):  # which takes that rank 0 has joined
        herring.allreduce(np.ones(3, "f"))
    if r == 1:
        os.kill(pids[0], signal.SIGUSR1)
    herring.barrier(group=group)
    herring.join()
    herring.allreduce(np.ones(3, "f"))

# A join that has failed: what its servers still say of the group is not taken amiss.
for turn in range(5):
    doomed = herring.new_group(range(herring.size()), name=f"d{turn}")
    if r == 0:
        raises(herring.TimeoutError, "did not call it", herring.join, group=doomed, timeout=0.05)
    else:
        try:
            while True:
                herring.allreduce(np.ones(20_000, "f"), group=doomed)
        except herring.PeerLostError:
            pass
    doomed.destroy()
    herring.barrier()
"""


@pytest.mark.parametrize("layout", ["colocated-servers", "uneven-nodes"])
def test_a_join_that_is_interrupted_or_fails(layout: str) -> None:
    expect_success(run_job(LAYOUTS[layout], INTERRUPTED))


LATE = """
herring.init()
r = herring.rank()
if r == 0:
    raises(herring.HerringError, "", herring.receive, np.zeros(1), 1)
else:
    raises(herring.TimeoutError, "for rank 0", herring.join, timeout=1)
print("told", r, flush=True)
os._exit(0)
"""


def test_a_deadline_ends_a_join_and_names_who_is_missing():
    done = run_job(LAYOUTS["dedicated-servers"], LATE)
    assert all(f"told {rank}" in done.stdout for rank in (1, 2, 3)), done.stdout
