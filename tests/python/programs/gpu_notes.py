"""Rounds of a small plan with a note, on a node of two ranks and a node of one."""

import os

import numpy as np

import herring
from gpu_job import GpuArray, gpus, rank, size

sizes = [(24, "float32"), (4, "float32")]
plan = herring.PlannedReduction(sizes, name="small", device=rank % gpus, note_bytes=7)
[(_, nbytes)] = plan.arenas
arena = GpuArray(np.zeros(nbytes // 4, np.float32), rank % gpus)
plan.place([arena])
for step in range(20):
    plan.begin()
    arena.store(np.full(nbytes // 4, rank + step, np.float32), 100)
    plan.note(bytes([rank] * 7))
    plan.ready_all(range(len(sizes)))
    plan.wait(600)
    assert plan.notes == bytes([size - 1] * 7)
    for _, offset, count in plan.placements:
        found = arena.get()[offset // 4 : (offset + count) // 4]
        assert (found == np.float32(step + (size - 1) / 2)).all(), (step, found)
alone = int(os.environ["HERRING_LOCAL_SIZE"]) == 1
assert plan.node_stage == ("host" if alone else os.environ["HERRING_NODE_STAGE"]), plan.node_stage
plan.close()
herring.shutdown()
