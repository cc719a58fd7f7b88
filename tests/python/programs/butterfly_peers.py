"""Compares butterflies that stay on the GPUs of a node with those of processors, bit by bit.

Environment: PEERS says whether this rank's GPU reads others. OUT is how often the array's bytes
leave the GPU in a call.
"""

import os

import numpy as np

import herring
from butterfly_values import check
from gpu_job import GpuArray, driver, gpus, rank, size

UNTIL_KNOWN = 4  # calls before the GPUs know what they reach

gpu = rank % int(os.environ.get("GPUS", gpus))
peers = os.environ["PEERS"] == "1"


def peer_sums() -> int:
    return herring.stats()["gpu_peer_sums"]


def sent() -> int:
    return herring.stats()["workers"]["bytes_sent"]


array = GpuArray(np.zeros(700_001, np.float32), gpu)
for step in range(UNTIL_KNOWN + 6):
    if step == UNTIL_KNOWN:
        herring.barrier()
        before = driver.bytes(), sent(), peer_sums(), driver.allocations()
    array.fill(rank + step, 2000)
    herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly")
    array.scale(2)
    assert (array.get() == 2 * sum(r + step for r in range(size))).all(), step
(out, _, pageable), wire, read, allocations = before
assert peer_sums() - read == 6 * peers, (rank, peer_sums(), read)
assert driver.bytes()[2] == pageable and driver.allocations() == allocations
if (times := os.environ.get("OUT")) is not None:
    # Halves of an odd number of elements differ by one.
    assert abs(driver.bytes()[0] - out - float(times) * 6 * 4 * array.size) <= 6 * 4
    if times == "0":  # Messages between ranks have no data.
        assert sent() - wire < 6 * 4 * array.size // 50, sent() - wire

for dtype in ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"):
    floats = dtype.startswith("float")
    read, calls = peer_sums(), 0
    for op in ("sum", "min", "max", "product") + (("average",) if floats else ()):
        calls += check(dtype, 70_003, op, gpu)
        if floats:
            calls += check(dtype, 70_001, op, gpu, prescale=0.7, postscale=1.3)
    assert peer_sums() - read == calls * peers, (dtype, peer_sums() - read, calls)

# Larger and larger arrays, short ones, and some in host memory.
for count in (65_536, 1, 1_500_001, 1009, 3_000_001, size, 300_007):
    check("float32", count, "average", gpu)
    check("float32", count, "sum", None if rank == 0 else gpu)
    check("float32", count, "sum", None if rank % 2 else gpu, prescale=0.3)
read = peer_sums()
check("float32", 3_000_001, "sum", gpu)
assert peer_sums() - read == peers
assert driver.threads() == 1  # No other thread calls the driver.
herring.shutdown()
