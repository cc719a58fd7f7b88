"""Kills a member of a group while a slow GPU adds for it; another group goes on.

Operations of the group end once every neighbour has said that it no longer works on them. All
timeouts are longer than the job may take.
"""

import os
import signal
import time

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank
from support import tell, told

everybody = herring.new_group([0, 1, 2], name="everybody")
pair = herring.new_group([0, 1], name="pair")
plan = herring.PlannedReduction(
    [(600_000, "float32")], name="p", op="sum", device=0, group=everybody
)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
big = np.ones(20_000_000, np.float32)
for _ in range(2):
    plan.begin()
    plan.ready(0)
    plan.wait()
herring.barrier()
plan.begin()
if rank == 1:
    told("slow")
plan.ready(0)
if rank == 0:
    time.sleep(0.1)
    driver.jitter(1_000_000)  # From here on this GPU adds slowly.
    tell("slow")
elif rank == 1:
    tell("ready")
told("ready")
handle = herring.allreduce_async(big, name="big", group=everybody)
if rank == 2:
    told("begun 0", "begun 1")
    os.kill(os.getpid(), signal.SIGKILL)
tell(f"begun {rank}")
for wait in (plan.wait, plan.close, handle.wait):
    try:
        wait()
    except herring.PeerLostError as error:
        print(f"rank {rank}: {error}")
driver.jitter(0)
herring.allreduce(np.ones(3, np.float32), group=pair)
print("the pair goes on")
herring.shutdown()
