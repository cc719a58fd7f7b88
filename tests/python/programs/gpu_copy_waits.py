"""Times calls that wait on the host for short copies.

On a busy machine any call may take long. But calls that wait for the engine's timer take long each
time, so it is enough that some calls in a row do not.
"""

import time

import numpy as np

import herring
from gpu_job import GpuArray

array = GpuArray(np.zeros(50_000, np.float32), tells=False)
plan = herring.PlannedReduction([(50_000, "float32")], name="p", op="sum", device=0)
plan.place([array])


def rounds():
    plan.begin()
    plan.ready(0)
    plan.wait()


for call in (
    lambda: herring.allreduce(array, "max"),
    lambda: herring.grouped_allreduce([array], "max"),
    lambda: herring.broadcast(array, 1),
    rounds,
):
    call()
    herring.barrier()
    slow = True
    while slow:
        start = time.monotonic()
        for _ in range(10):
            call()
        took = time.monotonic() - start
        # The engine's timer goes off every 50 ms.
        slow = bool(herring.allreduce(np.array([took > 10 * 0.025], np.int32), "max")[0])
herring.barrier()
herring.shutdown()
