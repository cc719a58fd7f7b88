"""Tests every grouped collective with lists of all dtypes and shapes."""

import array
import threading
import time

import numpy as np

import herring
from grouped_lists import listed, on, same

herring.init()
rank, size = herring.rank(), herring.size()

base = listed(3)
everyone = [on(r, base) for r in range(size)]
for op in ("sum", "max"):
    mine = [a.copy() for a in everyone[rank]]
    total = [
        np.sum(those, 0, dtype=np.float64)
        if op == "sum" and those[0].dtype != bool
        else np.max(those, 0)
        for those in zip(*everyone)
    ]
    total = [np.asarray(t).astype(a.dtype) for t, a in zip(total, base)]
    assert all(a is b for a, b in zip(herring.grouped_allreduce(mine, op), mine))
    same(mine, total)
floats = ["float32", "float64", "float16"]
few = listed(4, floats)
mine = [a.copy() for a in on(rank, few)]
herring.grouped_allreduce(mine, "average", prescale=size, postscale=2.0)
stacks = zip(*[on(r, few) for r in range(size)])
same(mine, [np.asarray(2 * np.sum(those, 0)).astype(a.dtype) for those, a in zip(stacks, few)])

# Results have the same bits each time. The large bundle of a dtype is reduced like a large single
# array, with the same bits.
loose = [
    np.random.default_rng([rank, i]).standard_normal(n).astype(t)
    for i, (n, t) in enumerate([(10, "f4"), (40_001, "f8"), (3, "f2"), (200_000, "f4")])
]
copies, again = [a.copy() for a in loose], [a.copy() for a in loose]
herring.grouped_allreduce(loose, "sum")
herring.grouped_allreduce(again, "sum")
same(loose, again)
for copy in copies[1:3]:
    herring.allreduce(copy, "sum")
same(loose[1:2], copies[1:2])
assert np.allclose(loose[2], copies[2], atol=0.01)

rows = [a.reshape(a.shape or (1,)) for a in everyone[rank]]
ragged = [np.repeat(a, 1 + rank, axis=0) for a in rows]
gathered = herring.grouped_allgather(ragged)
same(
    gathered,
    [
        np.concatenate(
            [np.repeat(everyone[r][i].reshape(a.shape), 1 + r, axis=0) for r in range(size)]
        )
        for i, a in enumerate(rows)
    ],
)

parts = herring.grouped_reduce_scatter(rows, "max")


def part(a):
    n = len(a)
    first = rank * (n // size) + min(rank, n % size)
    return a[first : first + n // size + (rank < n % size)]


same(
    parts, [part(np.max([e[i].reshape(a.shape) for e in everyone], 0)) for i, a in enumerate(rows)]
)
same(rows, [a.reshape(a.shape or (1,)) for a in on(rank, base)])

for root in range(size):
    mine = [a.copy() for a in everyone[rank]]
    herring.grouped_broadcast(mine, root)
    same(mine, everyone[root])

# Empty lists are allowed.
assert herring.grouped_allreduce([]) == [] == herring.grouped_allgather([])
assert herring.grouped_broadcast([]) == [] == herring.grouped_reduce_scatter([])
assert herring.grouped_allreduce_async([]).wait(600) == []

# Shared memory and other kinds of arrays; then many lists in flight, in a different order per rank.
shared = herring.empty((3, 30_000))
shared[:] = rank
plain = array.array("d", [rank, 1.0])
herring.grouped_allreduce([shared, plain, bytearray(4)], "sum")
assert (shared == sum(range(size))).all() and list(plain) == [sum(range(size)), size]
names = [str(i) for i in range(12)]
np.random.default_rng(rank).shuffle(names)
handles = {}
for n in names:
    handles[n] = herring.grouped_allreduce_async(
        [np.full(int(n) * 9000, rank, np.int64), np.full(3, rank, np.float32)], "sum", name=n
    )
for n in reversed(names):
    assert isinstance(handles[n], herring.Handle)
    for found in handles[n].wait(600):
        assert (found == sum(range(size))).all()
    assert handles[n].done() and handles[n].exception() is None

# Results arrive even if no caller waits.
mine = [np.full(50_000, rank, np.float32), np.full(2, rank, np.int32)]
there = threading.Event()
herring.grouped_allreduce_async(mine, "sum", name="dropped").add_done_callback(
    lambda h: h.wait() is not None and there.set()
)
assert there.wait(600) and all((a == sum(range(size))).all() for a in mine)
mine = [np.full(50_000, rank, np.float32), np.full(2, rank, np.int32)]
herring.grouped_allreduce_async(mine, "sum", name="forgotten")
deadline = time.monotonic() + 600
while not all((a == sum(range(size))).all() for a in mine):
    assert time.monotonic() < deadline
    time.sleep(0.01)

if size > 2:
    group = herring.new_group([0, size - 1])
    if group.rank is not None:
        mine = [np.full(4, rank, np.float64), np.full((2, 2), rank, np.int16)]
        herring.grouped_allreduce(mine, "sum", group=group)
        assert all((a == size - 1).all() for a in mine)
        herring.grouped_broadcast(mine, 1, group=group)
        assert herring.grouped_allgather(mine, group=group)[1].shape == (4, 2)
        assert herring.grouped_reduce_scatter(mine, "sum", group=group)[1].shape == (1, 2)
herring.barrier()
