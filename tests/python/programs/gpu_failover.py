"""Servers die while arrays on GPUs are averaged, by plans and by name; all sums stay right.

Rank 0 kills a server again and again, each time while rounds are under way. The argument is the
number of kills.
"""

import os
import random
import signal
import sys
import threading
import time

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size
from serving import await_replaced, servers

ELEMENTS = 400_000
kills = int(sys.argv[1])
plan = herring.PlannedReduction(
    [(ELEMENTS // 4, "float32")] * 4, name="p", op="sum", device=rank % gpus, buffer_bytes=1 << 19
)
[(_, nbytes)] = plan.arenas
arena = GpuArray(np.zeros(nbytes // 4, np.float32), rank % gpus)
plan.place([arena])
named = GpuArray(np.zeros(ELEMENTS, np.float32), rank % gpus)
done = threading.Event()


def kill() -> None:
    for number in range(kills):
        time.sleep(random.uniform(0.0, 0.3))
        since = time.monotonic()
        os.kill(servers()[number % 2]["pid"], signal.SIGKILL)
        await_replaced(number % 2, since)
    done.set()


killer = threading.Thread(target=kill)
if rank == 0:
    killer.start()
step, more = 0, True
while more:
    arena.fill(rank + step, 500)
    plan.begin()
    for index in (2, 0, 3, 1):
        plan.ready(index)
    plan.wait()
    arena.scale(2)
    named.fill(rank * step, 500)
    herring.allreduce(named, "sum", name="n")
    found = arena.get()
    for _, offset, count in plan.placements:
        part = found[offset // 4 : (offset + count) // 4]
        assert (part == 2 * sum(r + step for r in range(size))).all(), (step, part[:3])
    found = named.get()
    assert (found == step * sum(range(size))).all(), (step, found[:3])
    step += 1
    more = bool(herring.broadcast(np.array([not done.is_set()]), 0)[0])
if rank == 0:
    killer.join()
plan.close()
assert driver.threads() == 1
print(f"rank {rank} is done after {step} steps", flush=True)
herring.shutdown()
