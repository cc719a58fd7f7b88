"""Rank 2 is killed during a series; the result says how much rank 2 contributed."""

import os
import signal

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum
from support import stay_until_all_know

herring.init()
rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
series = PartialReduction(elements, "int64", sync=Quorum(size), op="sum")
work = np.empty(elements, np.int64)
applied = np.zeros(elements, np.int64)
counted = [0] * size


def take_note(info):
    applied[:] += work
    for one in info.contributors:
        counted[one.rank] = one.upto


for step in range(1, 31):
    work[:] = 1000**rank * step
    series.contribute(work)
    if rank == 2 and step == 11:
        os.kill(os.getpid(), signal.SIGKILL)
    take_note(series.take(work))
work[:] = 0
for info in series.flush(work):
    take_note(info)
assert [one.rank for one in info.contributors] == [0, 1, 3], info
((lost, there, announced),) = info.lost
assert lost == 2 and there == counted[2] and 10 <= there <= announced <= 11, info.lost
expected = sum(1000**r * sum(range(counted[r] + 1)) for r in range(size))
expected -= sum(1000**r * 31 for r in (0, 1, 3))  # these ranks' last contribution is zero
assert (applied == expected).all(), (applied[:2], expected)
try:
    herring.barrier()
except herring.PeerLostError as error:
    assert "rank 2" in str(error), error
    print(f"survivor {rank} flushed; {series.statistics.summary().splitlines()[-1]}")
stay_until_all_know(rank, [0, 1, 3])
