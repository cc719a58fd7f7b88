"""Runs rounds of 180 plans at once, of which half wait for the other rank."""

import numpy as np

import herring

herring.init()
size = herring.size()
plans = [
    herring.PlannedReduction([(131_072, "float32")], name=f"p{i}", buffer_bytes=1 << 19)
    for i in range(180)
]
for step in range(2):
    for i, plan in enumerate(plans):
        plan.arena(0).view(np.float32)[:] = i + herring.rank() + step
    if herring.rank() == 1:
        herring.barrier()  # all rounds of rank 0 wait for this rank
    for plan in plans:
        plan.begin()
        plan.ready(0)
    if herring.rank() == 0:
        herring.barrier()
    for i, plan in enumerate(plans):
        plan.wait()
        assert (plan.arena(0).view(np.float32) == i + (size - 1) / 2 + step).all(), i
