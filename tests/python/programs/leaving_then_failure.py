"""Ranks leave, and later one that stays closes a plan inside a round; its neighbour hears of it."""

import os

import numpy as np

import herring
from support import has_rendezvous, meet_outside, until

herring.init()
rank = herring.rank()
host = herring.broadcast(np.array([os.getpid()]), 0)[0]
group = herring.new_group([2, 3])
if rank < 2:
    herring.shutdown()
    raise SystemExit
plan = herring.PlannedReduction([(1000, "float32")], name="p", group=group)
for _ in range(3):
    plan.begin()
    plan.ready(0)
    plan.wait()
until(lambda: not has_rendezvous(host))
herring.barrier(group=group)
meet_outside(rank, [2, 3])
try:
    plan.begin()
    if rank == 3:
        plan.close()
    else:
        plan.ready(0)
        plan.wait()
        herring.allreduce(np.ones(3), group=group)
except herring.PeerLostError as error:
    print(f"rank {rank} hears: {error}", flush=True)
