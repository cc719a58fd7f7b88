"""Checks that a rank that calls too late gets the error of the call that it missed."""

import numpy as np

import herring
from support import raises

herring.init()
rank = herring.rank()


def loss(value, timeout=None):
    return herring.allreduce(np.array([value], np.float32), "sum", name="loss", timeout=timeout)[0]


assert loss(1.0) == 3
if rank != 2:
    raises(herring.TimeoutError, "rank 2 (", loss, 50.0, 0.3)
herring.barrier()
if rank == 2:  # gets the error of the others' second call
    raises(herring.TimeoutError, "which did not call it", loss, 50.0)
assert loss(101.0) == 303
assert loss(1.0) == 3
# The same holds for arrays too large to travel with the announcement.
large = np.full(100_000, 1.0, np.float32)
if rank != 1:
    raises(herring.TimeoutError, "rank 1 (", herring.allreduce, large.copy(), name="w", timeout=0.3)
herring.barrier()
if rank == 1:
    raises(herring.TimeoutError, "which did not call it", herring.allreduce, large.copy(), name="w")
assert (herring.allreduce(large * (rank + 1), "sum", name="w") == 6).all()
