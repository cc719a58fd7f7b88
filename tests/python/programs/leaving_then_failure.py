"""Ranks leave, and later one that stays closes a plan inside a round; its neighbour hears of it."""

import time

import numpy as np

import herring

herring.init()
rank = herring.rank()
group = herring.new_group([2, 3])
if rank < 2:
    herring.shutdown()
    raise SystemExit
plan = herring.PlannedReduction([(1000, "float32")], name="p", group=group)
for _ in range(3):
    plan.begin()
    plan.ready(0)
    plan.wait()
time.sleep(2)  # The rendezvous waits less for those that stay.
herring.barrier(group=group)
began = time.monotonic()
try:
    plan.begin()
    if rank == 3:
        plan.close()
    else:
        plan.ready(0)
        plan.wait()
        herring.allreduce(np.ones(3), group=group)
except herring.PeerLostError as error:
    took = time.monotonic() - began
    print(f"rank {rank} hears after {took:.1f} s: {error}", flush=True)
