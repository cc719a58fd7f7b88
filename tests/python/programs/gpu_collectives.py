"""Reduces and broadcasts arrays on GPUs, alone and in lists; kernels run before and after."""

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

for tells in (True, False):
    array = GpuArray(np.zeros(300_000, np.float32), device=rank % gpus, tells=tells)
    for step in range(5):
        array.fill(rank + step, 2000)  # The copy must wait for this kernel of 2 ms.
        assert herring.allreduce(array, "sum", name="x") is array
        array.scale(2)  # Runs right after the copy back.
        assert (array.get() == 2 * sum(r + step for r in range(size))).all()
    handle = herring.allreduce_async(array, "average")
    assert handle.wait() is array and handle.wait() is array
    several = [GpuArray(np.full(n, rank, np.float32), rank % gpus, tells) for n in (5, 0, 70_000)]
    herring.grouped_allreduce(several, "sum")
    assert all((one.get() == sum(range(size))).all() for one in several)
    for root in range(size):
        array.fill(rank)
        herring.broadcast(array, root)
        assert (array.get() == root).all()
        several[2].fill(rank)
        herring.grouped_broadcast(several, root)
        assert (several[2].get() == root).all()
for dtype in ("float64", "float16", "int8", "int64", "bool"):
    array = GpuArray(np.full((3, 7), rank % 2).astype(dtype))
    herring.allreduce(array, "max")
    assert (array.get() == np.full((3, 7), min(size - 1, 1)).astype(dtype)).all(), dtype

# Only rank 0's array lies on a GPU; the bits are those of arrays in host memory.
values = np.random.default_rng(rank).standard_normal(50_000).astype(np.float32)
reference = herring.allreduce(values.copy(), "average")
mixed = GpuArray(values) if rank == 0 else values
herring.allreduce(mixed, "average")
found = mixed.get() if rank == 0 else mixed
assert (found.view(np.uint32) == reference.view(np.uint32)).all()

if copied := driver.bytes():
    out, back, pageable = copied
    assert pageable == 0 and 0 < out <= back
assert driver.threads() == 1  # No other thread calls the driver.
assert driver.calls(b"cuStreamSynchronize") == 0
herring.shutdown()
