"""Runs rounds in which rank 1, whose GPU is slow, contributes nothing."""

import ctypes

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank


def copied(array):
    """Queues a copy of the array behind all that is queued, and returns where the copy goes."""
    library, context = driver._library, ctypes.c_void_p()
    values = np.empty(array.shape, np.float32)
    library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    library.cuCtxPushCurrent_v2(context)
    failed = library.cuMemcpyDtoHAsync_v2(
        ctypes.c_void_p(values.ctypes.data),
        ctypes.c_uint64(array.address),
        ctypes.c_size_t(values.nbytes),
        ctypes.c_void_p(array.stream),
    )
    assert failed == 0
    library.cuCtxPopCurrent_v2(ctypes.byref(context))
    return values


plan = herring.PlannedReduction([(1000, "float32")], name="p", op="sum", device=0)
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
found = []
for step in range(5):
    if rank == 1:
        arena.fill(0, 100_000)  # This keeps the GPU busy.
    plan.begin(rank == 0)
    if rank == 0:
        arena.fill(step + 1)
        plan.ready(0)
    plan.wait()
    found.append(copied(arena))
arena.get()
for step, values in enumerate(found):
    assert (values[:1000] == step + 1).all(), (step, values[:3])
herring.shutdown()
