"""Checks that a call that one rank refuses fails on all ranks, and that the next call works."""

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
bad = herring.InvalidArgumentError
ok = np.ones(4, np.float32)
text = "not supported" if rank == 1 else "refused by rank 1 ("
raises(bad, text, herring.allreduce, np.zeros(4, np.complex64) if rank == 1 else ok.copy())
raises(
    bad,
    "average" if rank == 0 else "by rank 0 (",
    herring.allreduce,
    np.ones(4, np.int32),
    "average" if rank == 0 else "sum",
    name="op",
)
raises(bad, "splits", herring.alltoall, np.ones(2 * size), [2] * size if rank != 1 else [1, 2])
raises(bad, "integers", herring.alltoall, np.ones(3), [1.9, 1.1, 0])
raises(
    bad,
    "dimension" if rank == 2 else "rank 2",
    herring.allgather,
    np.float32(1) if rank == 2 else ok,
)
raises(
    bad,
    "root is 99" if rank == 1 else "rank 1",
    herring.reduce,
    ok.copy(),
    "sum",
    99 if rank == 1 else 0,
)
raises(herring.MismatchError, "splits [4, 0", herring.reduce, ok.copy(), "sum", int(rank == 1))
raises(
    bad, "dimension" if rank == 2 else "rank 2", herring.gather, np.float32(1) if rank == 2 else ok
)
raises(herring.MismatchError, "gather to rank 1", herring.gather, ok, int(rank == 1))
raises(bad, "no elements", herring.alltoall, np.ones((size, 0)))
raises(bad, "splits is [1]" if rank == 0 else "rank 0", herring.scatter, ok, 0, [1])
raises(bad, "dimension" if rank == 0 else "rank 0", herring.scatter, 1.5)
raises(bad, "splits is [1]", herring.reduce_scatter, ok, "sum", [1])
raises(
    Exception,
    "pickle" if rank == 0 else "rank 0",
    herring.broadcast_object,
    (i for i in ()) if rank == 0 else None,
)
raises(
    Exception,
    "pickle" if rank == 1 else "rank 1",
    herring.allgather_object,
    (i for i in ()) if rank == 1 else 1,
)
raises(
    bad,
    "timeout is -1" if rank == 1 else "rank 1",
    herring.barrier,
    timeout=-1 if rank == 1 else None,
)
raises(bad, "name has 600", herring.barrier, name="n" * 600)
# If one rank cannot make a plan or a series, no rank makes it, and the next one works.
raises(
    bad,
    "complex64" if rank == 1 else "refused by rank 1 (",
    herring.PlannedReduction,
    [(8, "complex64" if rank == 1 else "float32")],
    name="plan",
)
raises(
    bad,
    "elements is -8" if rank == 2 else "refused by rank 2 (",
    herring.PlannedReduction,
    [(-8 if rank == 2 else 8, "float32")],
    name="plan",
)
plan = herring.PlannedReduction([(8, "float32")], name="plan")
plan.arena(0).view(np.float32)[:8] = rank
plan.begin()
plan.ready(0)
plan.wait()
assert (plan.arena(0).view(np.float32)[:8] == 1).all()
raises(
    Exception,
    "99" if rank == 0 else "rank 0",
    herring.allreduce,
    ok.copy(),
    sync=herring.Quorum(99 if rank == 0 else 1),
    name="series",
)
# Rank 0 alone refuses a second call with a name in flight, but it counts as a call.
if rank == 0:
    first = herring.allreduce_async(ok.copy(), "sum", name="twice")
    raises(bad, "in flight", herring.allreduce_async, ok.copy(), "sum", name="twice")
herring.barrier()  # the others call later, so the first call is in flight
if rank != 0:
    assert herring.allreduce(ok.copy(), "sum", name="twice")[0] == size
    raises(bad, "rank 0", herring.allreduce, ok.copy(), "sum", name="twice")
if rank == 0:
    first.wait()
assert herring.allreduce(ok.copy(), "sum", name="twice")[0] == size
assert herring.allreduce(ok.copy(), "sum")[0] == size
