"""Rank 2 is slow, and the others wait for it only when its gradient gets too old."""

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum
from support import tell, told

herring.init()
rank = herring.rank()
series = PartialReduction(64, "float32", sync=Quorum(1, staleness=3))
work = np.zeros(64, np.float32)
herring.barrier()
rounds = []
for step in range(8):
    if rank == 2 and step == 0:
        told("three rounds 0", "three rounds 1")
    rounds.append(series.allreduce(work))
    if step == 2:
        tell(f"three rounds {rank}")
first = next(i for i in rounds if any(one.rank == 2 for one in i.contributors))
assert first.round == 3, first
one = next(one for one in first.contributors if one.rank == 2)
assert one.staleness == 3
assert series.memory <= 3 + 2
list(series.flush(work))
assert "rank 2 was late" in series.statistics.summary(), series.statistics.summary()
