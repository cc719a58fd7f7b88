"""Ends rank 1 (HOW) at a MOMENT of a call; the other ranks must not hang."""

import os
import signal
import time

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank

how, moment = os.environ["HOW"], os.environ["MOMENT"]
array = GpuArray(np.ones(6_000_000, np.float32), 0)
for _ in range(int(os.environ.get("WARM", "1"))):  # GPUs know after some calls what they reach.
    herring.allreduce(array, "sum", name="warm", algorithm="cuda-butterfly")
herring.barrier()
if rank == 1:
    if moment != "before":
        # A kernel of 300 ms makes the array, so the others begin before it is ready.
        array.fill(1, 300_000 if moment == "moving" else 0)
        handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly")
    if moment == "moving":
        time.sleep(0.2)
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    herring.shutdown()
    os._exit(0)
start = time.monotonic()
try:
    herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly")
    print(f"rank {rank}: no error")
    assert moment == "announced"  # The call may be complete before rank 1 ends.
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
assert time.monotonic() - start < 4, time.monotonic() - start
array.scale(2)
array.get()
driver.synchronize(0)  # No stream may wait for what never comes.
del array
print("nobody is parked")
