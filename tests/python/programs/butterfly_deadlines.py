"""Misses a deadline, because rank 1 or the GPU of rank 0 is LATE.

Only rank 0 has a deadline: the first rank whose time is over speaks for all. All other timeouts
are longer than the job may take.
"""

import os

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, driver, rank
from support import tell, tell_when_waiting, told, when_stopped

array = GpuArray(np.ones(6_000_000, np.float32))
for _ in range(int(os.environ.get("WARM", "1"))):
    herring.allreduce(array, "sum", algorithm="cuda-butterfly")
herring.barrier()
by_gpu = os.environ["LATE"] == "gpu"
gate = Gate()
if rank == 0:
    if by_gpu:
        gate.hold(array)
    array.fill(1)
    tell_when_waiting("waits", "waits in allreduce 'x'")
    try:
        herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly", timeout=4)
        raise AssertionError("there was no timeout")
    except herring.TimeoutError as error:
        print(f"told: {error}", flush=True)
    gate.open()
    driver.synchronize(0)  # No stream may wait for what never comes.
    print("nobody is parked", flush=True)
    tell("over")
    os._exit(0)
if not by_gpu:
    gate.hold(array)
array.fill(1)
handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly", timeout=600)
if not by_gpu:
    told("waits")
    when_stopped(lambda: told("over"))
try:
    handle.wait()
except herring.HerringError:
    os._exit(0)
