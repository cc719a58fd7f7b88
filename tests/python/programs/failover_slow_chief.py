"""A server dies while rank 0, which says who stands in for it, stands still for seconds."""

import os
import signal
import time

import numpy as np

import herring
from serving import servers

ELEMENTS = 100_000

herring.init()
rank = herring.rank()
plan = herring.PlannedReduction([(ELEMENTS, "float32")], name="rounds", op="sum")
arena = plan.arena(0).view(np.float32)
chief = int(herring.broadcast(np.array([os.getpid()]), 0)[0])
for step in range(4):
    arena[:ELEMENTS] = rank + step
    plan.begin()
    if step == 2 and rank == 1:
        victim = servers()[1]["pid"]
        os.kill(chief, signal.SIGSTOP)
        if os.fork() == 0:
            time.sleep(5)  # longer than the news of a server may take from a rank that runs
            os.kill(chief, signal.SIGCONT)
            os._exit(0)
        os.kill(victim, signal.SIGKILL)
    plan.ready(0)
    plan.wait()
    np.testing.assert_array_equal(arena[:ELEMENTS], 2 * step + 1)
plan.close()
print("is done", flush=True)
