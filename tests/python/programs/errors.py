"""Passes wrong and differing arguments: each error names them, and the job continues."""

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
bad = herring.InvalidArgumentError
raises(bad, "not supported", herring.allreduce, np.zeros(3, np.complex64))
raises(bad, "not contiguous", herring.allreduce, np.zeros((4, 4), np.float32)[:, ::2])
frozen = np.zeros(3, np.float32)
frozen.flags.writeable = False
raises(bad, "read-only", herring.allreduce, frozen)
raises(bad, "expected an array", herring.allreduce, [1.0, 2.0])
raises(bad, "'average' with dtype int32", herring.allreduce, np.zeros(3, np.int32))
raises(bad, "'median'", herring.allreduce, np.zeros(3, np.float32), "median")
raises(bad, "root is 7", herring.broadcast, np.zeros(3, np.float32), 7)
raises(bad, "splits", herring.alltoall, np.zeros(3, np.float32), [1])
# None of the errors has harmed the job.
ok = np.full(3, rank, np.float32)
herring.allreduce(ok, "sum", name="still fine")
assert (ok == size * (size - 1) / 2).all()

mine = np.zeros(4 if rank == 1 else 3, np.float32)
raises(
    herring.MismatchError, "rank 1: allreduce of float32 [4]", herring.allreduce, mine, name="shape"
)
large = np.zeros(100_000, np.float64 if rank == 2 else np.float32)
raises(
    herring.MismatchError, "rank 2: allreduce of float64", herring.allreduce, large, name="dtype"
)
raises(
    herring.MismatchError,
    "ranks 0, 2: allreduce",
    herring.allreduce,
    np.zeros(5, np.float32),
    "sum" if rank == 1 else "average",
    name="op",
)
raises(
    herring.MismatchError,
    "ranks disagree about planned operation 'p'",
    herring.PlannedReduction,
    [(10 + rank, "float32")],
    name="p",
)
if rank == 0:
    first = herring.allreduce_async(np.zeros(9, np.float32), name="twice")
    raises(
        bad,
        "'twice' is already in flight",
        herring.allreduce_async,
        np.zeros(9, np.float32),
        name="twice",
    )
herring.barrier()  # the others call after this, so the first call was in flight
if rank != 0:
    first = herring.allreduce_async(np.zeros(9, np.float32), name="twice")
first.wait()
# One rank never calls: the others learn which, and the job continues.
if rank != 2:
    raises(
        herring.TimeoutError,
        "rank 2 (",
        herring.allreduce,
        np.zeros(9, np.float32),
        name="lonely",
        timeout=0.3,
    )
herring.barrier()
herring.allreduce(ok, "sum", name="fine to the end")
