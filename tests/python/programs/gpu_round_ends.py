"""Ends rank 1 (HOW) at a MOMENT of a round; rank 0 must not hang.

All timeouts are longer than the job may take, so only news of rank 1 ends what rank 0 waits for.
"""

import os
import signal

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank
from support import meet_outside, tell, told

plan = herring.PlannedReduction(
    [(300_000, "float32")] * 4, name="p", op="sum", device=0, buffer_bytes=1 << 20
)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
other = herring.PlannedReduction([(10, "float32")], name="other", device=0)
moments = ["made", "begun", "some out", "all out", "waiting"]
how, last = os.environ["HOW"], moments.index(os.environ["MOMENT"])


def step():
    plan.begin()
    yield
    plan.ready_all([0, 1])
    yield
    plan.ready_all([2, 3])
    yield


herring.barrier()
meet_outside(rank, [0, 1])
if rank == 1:
    reached = step()
    if last == 4:
        try:
            for _ in range(3):
                next(reached)
            plan.wait()  # The other rank leaves without having begun.
        except herring.HerringError:
            pass
        os._exit(0)
    for _ in range(last):
        next(reached)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "closes":
        plan.close()
        if last > 0:  # Closed inside the round, which alone must end it for the other rank.
            told("over")
    herring.shutdown()
    os._exit(0)
if last == 4:
    herring.shutdown()
    os._exit(0)
try:
    for _ in step():
        pass
    plan.wait()
    assert last == 3, "nothing has failed"  # Everything was out before rank 1 ended.
except herring.HerringError as error:
    print(f"rank 0: {type(error).__name__}: {error}")
tell("over")
# No stream may wait for what never comes, so this ends once all queued work has run.
arena.scale(2)
arena.get()
driver.synchronize(0)
plan.close()
other.close()
print("nobody is parked")
