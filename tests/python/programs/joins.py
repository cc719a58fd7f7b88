"""Ranks call all-reduce different numbers of times, then join."""

import threading
import time

import numpy as np

import herring
from support import raises

herring.init()
r, n = herring.rank(), herring.size()
bad, differ = herring.InvalidArgumentError, herring.MismatchError
group = herring.new_group(range(n), name="all")
part = herring.new_group(range(0, n, 2)) if r % 2 == 0 else None


def uneven(steps, scope, ranks, count, dtype, op, make):
    # Rank k of the scope calls all-reduce steps(k) times with its own values, then joins.
    k = scope.rank if scope else r
    for step in range(steps(k)):
        array = make(count, dtype)
        array[:] = k + 1 + step
        herring.allreduce(array, op, group=scope)
        values = [x + 1 + step for x in range(ranks) if steps(x) > step]
        expected = {
            "sum": sum,
            "max": max,
            "min": min,
            "average": lambda v: np.float32(sum(v)) / np.float32(len(v)),
        }[op](values)
        assert (array == np.dtype(dtype).type(expected)).all(), (count, op, step, array[:3])
    return herring.join(group=scope)


def numpy_empty(count, dtype):
    return np.empty(count, dtype)


scopes = [(None, n), (group, n)] + ([(part, part.size)] if part is not None else [])
for scope, ranks in scopes:
    for count in (3, 70_000, 400_001):
        for dtype, op in (
            ("float32", "average"),
            ("float64", "sum"),
            ("int32", "max"),
            ("float16", "average"),
            ("uint8", "min"),
        ):
            for make in (numpy_empty, herring.empty):
                last = uneven(lambda k: k % 3, scope, ranks, count, dtype, op, make)
                assert 0 <= last < ranks
    # No rank has data; only one rank has data; all ranks have equally much.
    assert 0 <= uneven(lambda k: 0, scope, ranks, 5, "float32", "sum", numpy_empty) < ranks
    uneven(lambda k: 3 * (k == 0), scope, ranks, 300_000, "float32", "sum", numpy_empty)
    uneven(lambda k: 2, scope, ranks, 300_000, "float32", "sum", numpy_empty)
    herring.barrier(group=scope)

# Many calls are in flight, in a different order on each rank; not every rank makes every call.
rng = np.random.default_rng(r)
for round in range(5):
    names = [f"n{i}" for i in range(12)]
    mine = [x for x in names if (int(x[1:]) + r + round) % (n + 1)]
    rng.shuffle(mine)
    handles = {
        x: herring.allreduce_async(np.full(3 if int(x[1:]) % 2 else 90_000, r + 1.0), "sum", name=x)
        for x in mine
    }
    last = herring.join()
    for x, handle in handles.items():
        callers = [q for q in range(n) if (int(x[1:]) + q + round) % (n + 1)]
        assert (handle.wait() == sum(q + 1 for q in callers)).all(), (round, x, callers)
    assert set(herring.allgather_object(last)) == {last}

# Grouped calls; then collectives that fail without a joined rank, and one that works without it.
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
        raises(
            differ,
            f"rank {n - 1} called join()",
            herring.allreduce,
            np.ones(4, "f"),
            algorithm="ring",
        )
        assert herring.allreduce(np.ones(4, "f"), "sum")[0] == n - 1
    herring.join()

# A rank that waits in join() refuses new calls of its other threads.
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
