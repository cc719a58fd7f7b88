"""Flushes twice, flushes late and continues, and leaves the loop of a flush early."""

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises

herring.init()
rank, bad = herring.rank(), herring.InvalidArgumentError
array = np.full(20, 1 + rank, np.float32)
raises(bad, "no partial all-reduce named 'never' was begun", herring.flush, array, name="never")
# Each epoch of a name ends with a flush.
for epoch in range(3):
    for _step in range(rank + epoch):
        herring.allreduce(array.copy(), "sum", sync="majority", name="a")
    if rank + epoch == 0:
        herring.allreduce(array.copy(), "sum", sync="majority", name="a")
    last = herring.flush(array, name="a")[-1]
    assert all((one == last).all() for one in herring.allgather_object(last)), epoch
    raises(bad, "'a' was flushed already", herring.flush, array, name="a")
# A flush that timed out continues where it stopped, without another contribution.
herring.allreduce(array.copy(), "sum", sync="solo", name="b")
if rank == 1:
    herring.allgather_object(None)
    results = herring.flush(array, name="b")
else:
    raises(
        herring.TimeoutError,
        "is not complete after 0.1 s",
        herring.flush,
        array,
        name="b",
        timeout=0.1,
    )
    herring.allgather_object(None)
    results = herring.flush(np.zeros_like(array), name="b")
everyone = herring.allgather_object(results[-1])
assert all((one == everyone[0]).all() for one in everyone)
# A flush whose caller left the loop continues in the same way.
series = PartialReduction(20, "int64", sync="solo", op="sum")
work, total = np.ones(20, np.int64), 0
for _step in range(1 + 3 * rank):
    work[:] = 1
    series.allreduce(work)
    total += work[0]
work[:] = 1
while not series.ended:
    for _info in series.flush(work):
        total += work[0]
        break
assert total == 3 + (1 + 4 + 7), total
raises(bad, "was flushed already; begin another", lambda: list(series.flush(work)))
raises(bad, "a contribution after its flush", series.allreduce, work)
