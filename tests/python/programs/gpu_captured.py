"""Waits inside the capture of a CUDA graph, before the other rank has called: refused at once."""

import ctypes

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank
from support import raises

TEXT = "is being captured for a CUDA graph"


def in_capture(array, wait):
    """Waits inside a capture, while what is waited for needs the other rank."""
    if rank == 0:
        driver.capture(ctypes.c_void_p(array.stream), True)
        raises(herring.InvalidArgumentError, TEXT, wait)
        intact = driver.capture(ctypes.c_void_p(array.stream), False)
        assert intact, "what Herring called has broken the capture"
    herring.barrier()


array = GpuArray(np.ones(1000, np.float32))
for algorithm in ("herring", "cuda-butterfly"):
    if rank == 0:
        handle = herring.allreduce_async(array, "sum", name=algorithm, algorithm=algorithm)
        in_capture(array, handle.wait)
    else:
        herring.barrier()
        handle = herring.allreduce_async(array, "sum", name=algorithm, algorithm=algorithm)
    handle.wait()
assert (array.get() == 4).all(), array.get()

plan = herring.PlannedReduction([(1000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
for _ in range(4):
    plan.begin()
    arena.fill(1 + 4 * rank)
    if rank == 0:
        plan.ready(0)
        in_capture(arena, plan.wait)
    else:
        herring.barrier()
        plan.ready(0)
    plan.wait()
    assert (arena.get()[:1000] == 6).all(), arena.get()
plan.close()
herring.shutdown()
