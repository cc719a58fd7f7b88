"""Closes plans while the GPU of rank 1 still reads the sums of its neighbours."""

import os

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

plan = herring.PlannedReduction([(600_000, "float32")], name="p", op="sum", device=rank % gpus)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32), rank % gpus)
plan.place([arena])
for step in range(3):
    plan.begin()
    arena.fill(step + 1)
    plan.ready(0)
    if step == 2 and rank == 1:
        driver.jitter(300_000)
    plan.wait()
assert plan.node_stage == os.environ["WANTED"]
if rank != 1:
    plan.close()
other = herring.PlannedReduction([(600_000, "float32")], name="o", op="sum", device=rank % gpus)
if rank != 1:
    other.arena(0).view(np.float32)[:] = 99  # The plan may get the memory of the closed one.
else:
    assert (arena.get()[:600_000] == 3 * size).all()
herring.barrier()
herring.shutdown()
