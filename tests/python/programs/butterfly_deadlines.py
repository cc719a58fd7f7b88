"""Misses a deadline, because rank 1 or the GPU of rank 0 is LATE.

Only rank 0 has a deadline: the first rank whose time is over speaks for all.
"""

import os
import signal
import time

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank

array = GpuArray(np.ones(6_000_000, np.float32))
for _ in range(int(os.environ.get("WARM", "1"))):
    herring.allreduce(array, "sum", algorithm="cuda-butterfly")
herring.barrier()
by_gpu = os.environ["LATE"] == "gpu"
if rank == 0:
    array.fill(1, 4_000_000 if by_gpu else 0)
    start = time.monotonic()
    try:
        herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly", timeout=2)
        raise AssertionError("there was no time-out")
    except herring.TimeoutError as error:
        print(f"told: {error}", flush=True)
    assert time.monotonic() - start < 3.5
    driver.synchronize(0)  # No stream may wait for what never comes.
    print("nobody is parked", flush=True)
    os._exit(0)
array.fill(1, 0 if by_gpu else 500_000)
handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly", timeout=100)
if not by_gpu:
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    handle.wait()
except herring.HerringError:
    os._exit(0)
