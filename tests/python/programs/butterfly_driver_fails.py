"""Lets the driver call number NTH of rank 0 fail; every rank prints its error.

All timeouts are longer than the job may take.
"""

import os

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank, size
from support import meet_outside

first = GpuArray(np.ones(1_000_000, np.float32))
for _ in range(int(os.environ["WARM"])):
    herring.allreduce(first, "sum", algorithm="cuda-butterfly")
herring.barrier()
meet_outside(rank, range(size))
before = driver.calls(None)
if rank == 0:
    driver.fail(None, int(os.environ["NTH"]), 719, os.environ["STICKY"] == "1")
try:
    for _ in range(3):
        herring.allreduce(first, "sum", algorithm="cuda-butterfly")
    print(f"rank {rank}: no error")
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
driver.fail(None, 0, 0, False)
driver.synchronize(0)  # No stream may wait for what never comes.
if rank == 0:
    print("calls", driver.calls(None) - before)
