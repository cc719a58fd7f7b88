"""A rank that others wait for computes, and the others are exposed."""

import time

import numpy as np

import herring
from support import tell_when_waiting, told

LATE = 0.15  # seconds at least, in each of 3 rounds

herring.init()
rank = herring.rank()
plan = herring.PlannedReduction([(1000, "float32")], name="model")
herring.barrier()
herring.stats()
for step in range(3):
    if rank == 0:
        told(*(f"waits {other} {step}" for other in range(1, herring.size())))
        time.sleep(LATE)
    plan.begin()
    plan.ready(0)
    if rank > 0:
        tell_when_waiting(f"waits {rank} {step}", "waits in 'model'")
    plan.wait()
plan.close()
herring.allreduce(np.ones(10, np.float32))
before = time.monotonic()
seconds = herring.stats()["seconds"]
last, total = seconds["last"], seconds["total"]
assert (last["rounds"], last["calls"]) == (3, 1), last
assert total["rounds"] == 3, total
assert total["calls"] >= 2, total
assert last["missed"] == total["missed"] == 0
for one in last, total:
    assert abs(one["seconds"] - one["compute"] - one["exposed"]) < 1e-6, one
    assert all(value >= 0 for value in one.values()), one
assert total["seconds"] >= last["seconds"] > LATE
if rank == 0:
    assert last["compute"] >= 3 * LATE, last
else:
    assert last["exposed"] > LATE, last
    assert last["node_stage"] + last["push"] + last["pull"] > LATE, last
again = herring.stats()["seconds"]
assert again["last"]["rounds"] == again["last"]["calls"] == 0
assert again["total"]["rounds"] == 3
assert again["last"]["seconds"] <= time.monotonic() - before + 1e-6
