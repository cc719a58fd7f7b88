"""Ends rank 1 (HOW) at a MOMENT of a round that GPUs add; no other rank must hang.

All timeouts are longer than the job may take, so only news of rank 1 ends what others wait for.
"""

import os
import signal

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank, size
from support import meet_outside, tell, told

plan = herring.PlannedReduction(
    [(300_000, "float32")] * 4, name="p", op="sum", device=0, buffer_bytes=1 << 20
)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
how, last = os.environ["HOW"], ["made", "begun", "some out", "all out"].index(os.environ["MOMENT"])


def step():
    plan.begin()
    yield
    plan.ready_all([0, 1])
    yield
    plan.ready_all([2, 3])
    yield


for _ in range(2):  # GPUs add from the third round on.
    for _ in step():
        pass
    plan.wait()
herring.barrier()
meet_outside(rank, range(size))
reached = step()
if rank == 1:
    for _ in range(last):
        next(reached)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "closes":
        plan.close()
        if last > 0:  # Closed inside the round, which alone must end it for the other ranks.
            told(*(f"over {other}" for other in range(size) if other != 1))
    herring.shutdown()
    os._exit(0)
try:
    for _ in reached:
        pass
    assert plan.node_stage == os.environ["STAGE"]
    plan.wait()
    assert last == 3, "nothing has failed"  # Everything was out before rank 1 ended.
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
tell(f"over {rank}")
# No stream may wait for what never comes, so this ends once all queued work has run.
arena.scale(2)
arena.get()
driver.synchronize(0)
plan.close()
print("nobody is parked")
