"""Runs rounds of a plan with two arenas, whose streams differ and one of which is late."""

import numpy as np

import herring
from gpu_job import GpuArray, rank, size

sizes = [(100_000, "float32"), (50_000, "int32"), (70_000, "float32")]
plan = herring.PlannedReduction(sizes, name="p", op="sum", device=0)
arenas = [GpuArray(np.zeros(n // 4, dtype)) for dtype, n in plan.arenas]
plan.place(arenas)
assert len({arena.stream for arena in arenas}) == 2
for step in range(5):
    plan.begin()
    for arena in arenas:
        late = 8000 if arena is arenas[1] else 0
        arena.store(np.full(arena.shape, rank + step, arena.dtype), late)
    plan.ready_all([0, 1, 2])
    plan.wait()
    wanted = sum(r + step for r in range(size))
    for index, offset, count in plan.placements:
        found = arenas[index].get()[offset // 4 : (offset + count) // 4]
        assert (found == wanted).all(), (step, index, found[:3], wanted)
plan.close()
herring.shutdown()
