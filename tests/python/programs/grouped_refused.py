"""Checks that a call that one rank refuses fails on all, and tests calls that come too late."""

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()


def on_last(value, other):
    return value if rank == size - 1 else other


read_only = np.ones(3)
read_only.flags.writeable = False
strided = np.ones((4, 4))[:, 1:3]


class Odd:
    def __iter__(self):
        raise OSError("out of ideas")


cases = [
    (read_only, "array 1 of the list: the array is read-only"),
    (strided, "array 1 of the list: the array is not contiguous"),
    (np.array(["x"]), "array 1 of the list"),
    ("text", "array 1 of the list: expected an array"),
]
for bad, text in cases:
    good = np.full(5, rank, np.float32)
    for call in (herring.grouped_allreduce, herring.grouped_broadcast):
        raises(herring.InvalidArgumentError, text, call, [good, on_last(bad, np.ones(3))], name="r")
    if bad is not read_only:
        for call in (herring.grouped_allgather, herring.grouped_reduce_scatter):
            raises(herring.InvalidArgumentError, text, call, [good, on_last(bad, np.ones(3))])
    assert (good == rank).all()
    assert (
        herring.grouped_allreduce([good, np.ones(2, np.int8)], "max", name="r")[0] == size - 1
    ).all()
good = np.full(5, rank, np.float32)
with_kind = herring.InvalidArgumentError if rank < size - 1 else OSError
raises(with_kind, "out of ideas", herring.grouped_allreduce, on_last(Odd(), [good]), name="r")
raises(
    herring.InvalidArgumentError,
    "not one array",
    herring.grouped_allreduce,
    on_last(good, [good]),
    name="r",
)
raises(
    herring.InvalidArgumentError,
    "array 1 of the list: op 'average'",
    herring.grouped_allreduce,
    [good, np.ones(3, np.int32)],
)
raises(
    herring.InvalidArgumentError,
    "array 0",
    herring.grouped_allreduce,
    [np.ones(3, np.int32)],
    "sum",
    prescale=2.0,
)
raises(herring.InvalidArgumentError, "nonsense", herring.grouped_allreduce, [good], "nonsense")
raises(herring.InvalidArgumentError, "dimension", herring.grouped_allgather, [np.array(1.0)])
raises(herring.InvalidArgumentError, "dimension", herring.grouped_reduce_scatter, [np.array(1.0)])
raises(herring.InvalidArgumentError, "root", herring.grouped_broadcast, [good], size)
raises(herring.InvalidArgumentError, "timeout", herring.grouped_allreduce, [good], timeout=-1)
# Rank 0 calls after the deadline of the others.
mine = [np.full(5, rank, np.float32), np.full(2, rank, np.int32)]
late = {"op": "sum", "name": "late", "timeout": 0.7}
if rank == 0:
    herring.barrier()
    raises(herring.TimeoutError, "rank 0", herring.grouped_allreduce, mine, **late)
else:
    raises(herring.TimeoutError, "rank 0", herring.grouped_allreduce, mine, **late)
    herring.barrier()
assert all((a == rank).all() for a in mine)
late["timeout"] = 600
assert all((a == sum(range(size))).all() for a in herring.grouped_allreduce(mine, **late))
# A wait that times out leaves the operation in flight.
mine = [np.full(5, rank, np.float32), np.full(2, rank, np.int32)]
if rank == 0:
    handle = herring.grouped_allreduce_async(mine, "sum", name="slow")
    raises(herring.TimeoutError, "goes on", handle.wait, 0.1)
    raises(herring.InvalidArgumentError, "timeout", handle.wait, 0)
    assert not handle.done() and all((a == rank).all() for a in mine)
    herring.barrier()
else:
    herring.barrier()
    handle = herring.grouped_allreduce_async(mine, "sum", name="slow")
assert all((a == sum(range(size))).all() for a in handle.wait())
herring.barrier()
