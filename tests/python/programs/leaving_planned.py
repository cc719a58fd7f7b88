"""Rank 2 leaves during a planned round, in a job that has a series of partial rounds."""

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises, tell_when_waiting, told

herring.init()
rank = herring.rank()
series = PartialReduction(8, "float32", sync="solo", name="s")
plan = herring.PlannedReduction([(100_000, "float32")], name="p")
series.allreduce(np.ones(8, np.float32))
herring.barrier()
if rank < 2:
    plan.begin()
    plan.ready(0)
    tell_when_waiting(f"waits {rank}")
    raises(herring.PeerLostError, "rank 2 (", plan.wait)
    print("told", flush=True)
else:
    told("waits 0", "waits 1")
