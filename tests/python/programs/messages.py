"""Sends messages of many sizes: between neighbours, by tag, from any source and in groups."""

import numpy as np

import herring
from support import raises

herring.init()
r, n = herring.rank(), herring.size()
bad = herring.InvalidArgumentError
right, left = (r + 1) % n, (r - 1) % n
for count in (0, 1, 100, 16_384, 16_385, 3_000_000):  # around the size sent with the announcement
    for dtype in (np.float32, np.int8, np.float64, bool):
        mine = (np.arange(count) + r).astype(dtype)
        place = np.zeros(count, dtype)
        sending = herring.send_async(mine, right, tag=7)
        assert herring.receive(place, left, tag=7) == left
        sending.wait()
        assert np.array_equal(place, (np.arange(count) + left).astype(dtype))

# Messages of one tag arrive in the order sent; tags can be received in any order.
for count in (10, 100_000):
    if r == 0:
        handles = [
            herring.send_async(np.full(count, 10 * to + i, np.float32), to, tag=i % 2)
            for i in range(6)
            for to in range(1, n)
        ]
        [h.wait() for h in handles]
    else:
        array = np.empty(count, np.float32)
        for expected, tag in [(1, 1), (3, 1), (0, 0), (2, 0), (5, 1), (4, 0)]:
            got = herring.receive_async(array, 0, tag)
            got.wait()
            assert (array == 10 * r + expected).all() and (got.source, got.tag) == (0, tag)

# Receives from any source, with any tag.
for count in (10, 100_000):
    if r == 0:
        seen = set()
        for _ in range(n - 1):
            array = np.empty(count, np.int64)
            got = herring.receive_async(array, tag=None)
            got.wait()
            assert (array == got.source).all() and got.tag == 100 + got.source
            seen.add(got.source)
        assert seen == set(range(1, n))
    else:
        herring.send(np.full(count, r, np.int64), 0, tag=100 + r)
    herring.barrier()

raises(bad, "which is this rank itself", herring.send, np.ones(3), r)
raises(bad, f"send: to is {n}; the job's ranks are 0 to", herring.send, np.ones(3), n)
raises(bad, "source is -1", herring.receive, np.ones(3), -1)
raises(bad, "tag is -1", herring.send, np.ones(3), right, -1)
raises(bad, "not supported", herring.send, np.ones(3, complex), right)
frozen = np.ones(3)
frozen.flags.writeable = False
raises(bad, "read-only", herring.receive, frozen, left)
raises(
    herring.TimeoutError,
    f"receive from rank {left} (tag 5) waited",
    herring.receive,
    np.ones(3),
    left,
    5,
    timeout=0.2,
)
raises(
    herring.TimeoutError,
    f"send to rank {right} (tag 6) waited",
    herring.send,
    np.ones(3),
    right,
    6,
    timeout=0.2,
)
herring.barrier()
if r == 0:
    raises(herring.MismatchError, "rank 0", herring.send, np.ones(3), 1)
elif r == 1:
    raises(herring.MismatchError, "sends 3 elements of float64", herring.receive, np.ones(4), 0)
herring.barrier()

# Inside a group, ranks are those of the group, and messages stay in the group.
group = herring.new_group(list(range(n))[::-1][: max(n - 1, 1)])
if group.rank is not None and group.size > 1:
    first, last = 0, group.size - 1
    if group.rank == first:
        outer = herring.send_async(np.full(4, 1.0), group.ranks[last])
        herring.send(np.full(4, 2.0), last, group=group)
        outer.wait()
    elif group.rank == last:
        array = np.empty(4)
        assert herring.receive(array, group=group) == first and (array == 2).all()
        assert herring.receive(array) == group.ranks[first] and (array == 1).all()
herring.barrier()
