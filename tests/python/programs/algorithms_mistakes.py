"""Passes wrong arguments to algorithms, and different ones on different ranks."""

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
ones = np.ones(1000, np.float32)
bad = herring.InvalidArgumentError
names = "'herring', 'server', 'tree', 'ring', 'butterfly', 'doubling'"
raises(bad, names, herring.allreduce, ones, algorithm="rings")
integers = np.zeros(3, np.int32)
raises(bad, "'average' with dtype int32", herring.allreduce, integers, algorithm="ring")

# Ranks give different algorithms, dtypes, shapes and operators.
doubles = ones.astype(np.float64) if rank == 0 else ones
longer = np.ones(1001 if rank == 0 else 1000, np.float32)
in_words = "allreduce of float32 [1000], op sum, algorithm ring"
for text, array, op, algorithm in (
    (f"rank 1: {in_words}", ones, "sum", "ring" if rank == 1 else "tree"),
    (f"rank 2: {in_words}", ones, "sum", "ring" if rank == 2 else "herring"),
    ("rank 0: allreduce of float64", doubles, "average", "ring"),
    ("rank 0: allreduce of float32 [1001]", longer, "average", "butterfly"),
    ("op max", ones, "max" if rank else "sum", "server"),
):
    raises(herring.MismatchError, text, herring.allreduce, array, op, algorithm=algorithm, name="x")

# One rank never calls: the others learn which, and the job continues.
if rank != 2:
    late = herring.TimeoutError
    raises(late, "rank 2 (", herring.allreduce, ones, timeout=0.3, algorithm="ring", name="lonely")
herring.barrier()
herring.allreduce(ones, "sum", algorithm="ring")
assert (ones == size).all()
