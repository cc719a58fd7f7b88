"""Passes wrong arguments to algorithms, and different ones on different ranks."""

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
ones = np.ones(1000, np.float32)
raises(
    herring.InvalidArgumentError,
    "'herring', 'server', 'tree', 'ring', 'butterfly'",
    herring.allreduce,
    ones,
    algorithm="rings",
)
raises(
    herring.InvalidArgumentError,
    "'average' with dtype int32",
    herring.allreduce,
    np.zeros(3, np.int32),
    algorithm="ring",
)
raises(
    herring.MismatchError,
    "rank 1: allreduce of float32 [1000], op sum, algorithm ring",
    herring.allreduce,
    ones,
    "sum",
    name="a",
    algorithm="ring" if rank == 1 else "tree",
)
raises(
    herring.MismatchError,
    "rank 2: allreduce of float32 [1000], op sum, algorithm ring",
    herring.allreduce,
    ones,
    "sum",
    name="b",
    algorithm="ring" if rank == 2 else "herring",
)
raises(
    herring.MismatchError,
    "rank 0: allreduce of float64",
    herring.allreduce,
    ones.astype(np.float64) if rank == 0 else ones,
    name="c",
    algorithm="ring",
)
raises(
    herring.MismatchError,
    "rank 0: allreduce of float32 [1001]",
    herring.allreduce,
    np.ones(1001 if rank == 0 else 1000, np.float32),
    name="d",
    algorithm="butterfly",
)
raises(
    herring.MismatchError,
    "op max",
    herring.allreduce,
    ones,
    "max" if rank else "sum",
    name="e",
    algorithm="server",
)
# One rank never calls: the others learn which, and the job continues.
if rank != 2:
    raises(
        herring.TimeoutError,
        "rank 2 (",
        herring.allreduce,
        ones,
        name="lonely",
        timeout=0.3,
        algorithm="ring",
    )
herring.barrier()
herring.allreduce(ones, "sum", algorithm="ring")
assert (ones == size).all()
