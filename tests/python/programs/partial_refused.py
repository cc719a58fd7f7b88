"""Passes arguments that are refused within a series; they must contribute nothing."""

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
everybody = herring.Quorum(size)
bad = herring.InvalidArgumentError


def ones() -> np.ndarray:
    return np.ones(4, np.float32)


def call(array: np.ndarray, op: str = "sum", **options: object) -> np.ndarray:
    return herring.allreduce(array, op, sync=everybody, name="series", **options)


def refused(text: str, array: np.ndarray, *arguments: object, **options: object) -> None:
    raises(bad, text, call, array, *arguments, **options)
    assert (call(ones()) == size).all()


fixed = ones()
fixed.flags.writeable = False
# The first call of a series waits for all ranks, so that all must hear of the refusal.
if rank == 0:
    raises(bad, "read-only", call, fixed)
else:
    raises(herring.HerringError, "read-only", call, ones())
assert (call(ones()) == size).all()
refused("began with op='sum', now op is 'average'", ones(), "average")
refused("began with op='sum', now op is 'max'", ones(), "max")
refused("the array is read-only", fixed)
refused("timeout is -1", ones(), timeout=-1)
refused("the array is not contiguous", np.ones((4, 2), np.float32)[:, 0])
results = herring.flush(np.zeros(4, np.float32), name="series")
assert len(results) == 1 and (results[0] == 0).all(), results

# Calls of an ordinary all-reduce are not a series.
for op, expected in [("sum", size), ("max", 1)]:
    array = herring.allreduce(ones(), op, sync="full", name="ordinary")
    assert (array == expected).all()

series = PartialReduction(4, "float32", sync=everybody, op="sum")
for text, result in [("read-only", fixed), ("has 5 of float32", np.ones(5, np.float32))]:
    raises(bad, text, lambda result=result: list(series.step(ones(), result)))
raises(bad, "timeout is -1", lambda: list(series.step(ones(), ones(), timeout=-1)))
raises(bad, "read-only", series.allreduce, fixed)
raises(bad, "read-only", lambda: list(series.flush(fixed)))
assert series.contributions == (0, 0)
list(series.flush(ones()))
