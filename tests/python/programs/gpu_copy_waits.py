"""Times calls that wait on the host for short copies."""

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
    start = time.monotonic()
    for _ in range(20):
        call()
    took = time.monotonic() - start
    assert took < 20 * 0.025, took  # The engine's timer goes off every 50 ms.
herring.barrier()
herring.shutdown()
