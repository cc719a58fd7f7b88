"""Misses a deadline and makes wrong calls; the next call of the same name is right."""

import numpy as np

import herring
from gpu_job import GpuArray, rank, size
from support import raises, tell, told

array = GpuArray(np.full(200_000, 1, np.float32))
if rank == 0:
    raises(herring.TimeoutError, "rank 1", herring.allreduce, array, name="late", timeout=0.5)
    tell("late")
    array.fill(1)
else:
    told("late")
    raises(herring.TimeoutError, "'late'", herring.allreduce, array, name="late")
    array.fill(1)
herring.allreduce(array, "sum", name="late")
assert (array.get() == size).all()
if rank == 1:
    raises(
        herring.InvalidArgumentError,
        "int32",
        herring.allreduce,
        GpuArray(np.ones(3, np.int32)),
        "average",
        name="refused",
    )
else:
    raises(
        herring.InvalidArgumentError,
        "was refused by rank 1",
        herring.allreduce,
        GpuArray(np.ones(3, np.float32)),
        "average",
        name="refused",
    )
raises(
    herring.MismatchError,
    "'odd'",
    herring.allreduce,
    GpuArray(np.ones(3 + rank, np.float32)),
    name="odd",
)
herring.allreduce(array, "sum", name="late")
assert (array.get() == size * size).all()
herring.shutdown()
