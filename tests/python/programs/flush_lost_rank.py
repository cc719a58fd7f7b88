"""Rank 3 is killed, or leaves, before it flushes; the other ranks flush without it."""

import os
import signal
import sys

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum

herring.init()
rank, size, elements = herring.rank(), herring.size(), int(os.environ["ELEMENTS"])
series = PartialReduction(elements, "int64", sync=Quorum(2), op="sum")
work = np.ones(elements, np.int64)
applied, counted, rounds = np.zeros(elements, np.int64), {}, 0


def note(info):
    global rounds
    applied[:] += work
    counted.update({one.rank: one.upto for one in info.contributors})
    rounds += 1


for _step in range(12 if rank == 3 else 3 + rank):
    work[:] = 1
    note(series.allreduce(work))
if rank == 3:  # the others have flushed and follow this rank's rounds
    if os.environ["HOW"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    herring.shutdown()
    sys.exit(0)
work[:] = 1
for info in series.flush(work):
    note(info)
assert info.last and info.round + 1 == rounds >= 12, info
((lost, there, announced),) = info.lost
assert lost == 3 and there == announced == 12 == counted[3], info.lost
assert series.contributions == (4 + rank, 4 + rank)
assert (applied == sum(counted.values())).all(), (applied[:2], counted)
assert counted[rank] == 4 + rank
print(f"survivor {rank} saw {rounds} rounds", flush=True)
