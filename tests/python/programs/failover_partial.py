"""Servers die during partial all-reduces: those that only sum, or the one that closes the rounds.

Rank 0 kills the servers that its arguments name, one after another, and each time waits until the
job's status shows that another process has taken the place. The first argument is that of a server
that dies before the first series, or "none". All ranks check that what was contributed is what was
applied. If a series ends with an error, they say so.
"""

import signal
import sys
import threading

import numpy as np

import herring
from herring.partial import PartialReduction
from serving import replace

ELEMENTS = 200_000
NAME = "a series"

herring.init()
rank, size = herring.rank(), herring.size()
killed = threading.Event()


def kill() -> None:
    """Kills servers in turn."""
    for index in sys.argv[2:]:
        replace(int(index), signal.SIGKILL)
    killed.set()


killer = threading.Thread(target=kill)
if rank == 0:
    if sys.argv[1] != "none":
        replace(int(sys.argv[1]), signal.SIGKILL)
    killer.start()
rounds = 0
try:
    while not herring.allreduce(np.array([killed.is_set()]), "max", name="go on")[0]:
        series = PartialReduction(ELEMENTS, "int64", name=NAME, sync="majority", op="sum")
        produced, applied = np.zeros(ELEMENTS, np.int64), np.zeros(ELEMENTS, np.int64)
        result = np.empty(ELEMENTS, np.int64)
        for step in range(20):
            mine = (np.arange(ELEMENTS) * (rank + 1) + step) % 1009
            produced += mine
            for info in series.step(mine, result):
                applied += result * info.divisor
        mine = np.full(ELEMENTS, rank)
        produced += mine
        result[:] = mine
        for info in series.flush(result):
            applied += result * info.divisor
            rounds += 1
        total = np.sum(herring.allgather(produced[None], name="all"), axis=0)
        assert (total == applied).all(), (total[:4], applied[:4])
except herring.PeerLostError as error:
    print(f"rank {rank} is told: {error}", flush=True)
    sys.exit(3)
if rank == 0:
    killer.join()
print(f"rank {rank} is done after {rounds} last rounds", flush=True)
