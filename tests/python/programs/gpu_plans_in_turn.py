"""Makes and closes 50 plans, and compares how much memory is pinned."""

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

pinned = []
for number in range(50):
    sizes = [(600_000 + 9000 * number, "float32"), (300_000 - 1000 * number, "float64")]
    plan = herring.PlannedReduction(sizes, name=f"p{number}", op="sum", device=rank % gpus)
    arenas = [GpuArray(np.zeros(n // np.dtype(d).itemsize, d), rank % gpus) for d, n in plan.arenas]
    plan.place(arenas)
    for step in range(4):
        plan.begin()
        for arena in arenas:
            arena.store(np.full(arena.shape, rank + step))
        plan.ready_all([0, 1])
        plan.wait()
    for arena in arenas:
        assert (arena.get()[:1000] == sum(r + 3 for r in range(size))).all()
    plan.close()
    pinned.append(driver.registrations())
assert max(pinned[3:]) <= pinned[2] + 2, pinned
herring.shutdown()
