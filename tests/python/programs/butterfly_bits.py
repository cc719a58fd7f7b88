"""Compares the GPU-kernel butterfly with processors, bit by bit, in all dtypes and operators."""

import numpy as np

import herring
from butterfly_values import check
from gpu_job import GpuArray, driver, gpus, rank, size

gpu = rank % gpus
by_gpu = 0  # The number of calls for which the GPU computes sums.
for count in (0, 1, 2, 3, size, 1009, 300_007, 3_000_001):
    by_gpu += check("float32", count, "average", gpu)
for dtype in ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"):
    floats = dtype.startswith("float")
    for op in ("sum", "min", "max", "product") + (("average",) if floats else ()):
        by_gpu += check(dtype, 5003, op, gpu)
        if floats:
            by_gpu += check(dtype, 40_001, op, gpu, prescale=0.7, postscale=1.3)
            by_gpu += check(dtype, 7, op, gpu, prescale=3.0)
# Some arrays lie in host memory.
for count in (1, 100_003, 1_500_001):
    by_gpu += check("float32", count, "average", None if rank == 0 else gpu)
    by_gpu += check("float32", count, "sum", None if rank % 2 else gpu, prescale=0.3)

# A kernel before the call makes the array, and one after it uses the result. Nobody waits for the
# device.
for tells in (True, False):
    array = GpuArray(np.zeros(700_001, np.float32), gpu, tells)
    waits = driver.calls(b"cuStreamSynchronize")
    before = driver.bytes()
    for step in range(6):
        array.fill(rank + step, 2000)
        herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly")
        array.scale(2)
        assert (array.get() == 2 * sum(r + step for r in range(size))).all(), step
        by_gpu += size > 1
    assert driver.calls(b"cuStreamSynchronize") == waits
    power = 1 << (size.bit_length() - 1)
    if before and power == size > 1:
        (out, back, _), (after, returned, pageable) = before, driver.bytes()
        # Each byte leaves once in each call, or never, if a neighbour's GPU reads it there. What
        # came from a neighbour may have to leave for another node.
        whole, peers = 6 * 4 * array.size, herring.stats()["gpu_peer_sums"]
        left = after - out
        assert left <= whole if peers else left == whole, (left, peers)
        # Kernels read host memory, so only commands of 64 bytes are copied in.
        assert returned - back < 6 * 64 * 200 and pageable == 0
assert herring.stats()["gpu_sums"] == by_gpu, (herring.stats()["gpu_sums"], by_gpu)
assert driver.threads() == 1  # No other thread calls the driver.
herring.shutdown()
