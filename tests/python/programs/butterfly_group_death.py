"""Kills rank 2 during a call of its group; another group goes on.

All timeouts are longer than the job may take, so only news of rank 2 ends what rank 1 waits for.
"""

import os
import signal

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, driver, rank
from support import meet_outside, raises, tell_when_waiting, told

groups = [herring.new_group([1, 2]), herring.new_group([0, 1])]
array = GpuArray(np.ones(6_000_000, np.float32), 0)
for group in groups:
    for _ in range(int(os.environ.get("WARM", "1")) if rank in group.ranks else 0):
        herring.allreduce(array, "sum", group=group, algorithm="cuda-butterfly")  # loads the kernel
herring.barrier()
meet_outside(rank, range(3))
if rank == 2:
    Gate().hold(array)  # The kernel never ends.
    herring.allreduce_async(array, "sum", name="x", group=groups[0], algorithm="cuda-butterfly")
    told("waits")
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1:
    tell_when_waiting("waits", "waits in allreduce 'x'")
    raises(
        herring.PeerLostError,
        "rank 2",
        herring.allreduce,
        array,
        "sum",
        name="x",
        group=groups[0],
        algorithm="cuda-butterfly",
    )
    driver.synchronize(0)  # No stream may wait for what never comes.
before = herring.stats()
for step in range(6):
    array = GpuArray(np.full(300_000, rank + 1 + step, np.float32), 0)
    herring.allreduce(array, "sum", name="y", group=groups[1], algorithm="cuda-butterfly")
    assert (array.get() == 3 + 2 * step).all()
assert herring.stats()["gpu_sums"] == before["gpu_sums"] + 6
assert herring.stats()["gpu_peer_sums"] > before["gpu_peer_sums"]  # They share a GPU.
print("done without it", flush=True)
os._exit(0)
