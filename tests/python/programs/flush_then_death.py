"""Rank 2 is killed while it flushes; the other ranks continue and flush later."""

import os
import signal

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum

herring.init()
rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
series = PartialReduction(elements, "int64", sync=Quorum(3), op="sum")
work = np.ones(elements, np.int64)
rounds = 0
if rank == 2:
    for info in series.flush(work):  # noqa: B007
        rounds += 1
        if rounds == 5:
            os.kill(os.getpid(), signal.SIGKILL)
for _step in range(30):
    work[:] = 1
    series.allreduce(work)
    rounds += 1
for info in series.flush(work):  # noqa: B007
    rounds += 1
((lost, there, announced),) = info.lost
assert (lost, there, announced) == (2, 1, 1), info.lost
print(f"survivor {rank} saw {rounds} rounds", flush=True)
