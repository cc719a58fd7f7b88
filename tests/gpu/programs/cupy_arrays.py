"""Reduces, gathers and broadcasts arrays of CuPy, behind kernels queued in streams of its own."""

import cupy

import herring

herring.init()
rank, size = herring.rank(), herring.size()
cupy.cuda.Device(rank % cupy.cuda.runtime.getDeviceCount()).use()
N = 1_000_003
total = sum(r + 1 for r in range(size))
for number in range(5):
    with cupy.cuda.Stream(non_blocking=True) as stream:
        noise = cupy.random.standard_normal((1024, 1024), dtype=cupy.float32)
        for _ in range(20):
            noise = noise @ noise / 1024
        mine = (noise[0, 0] * 0 + rank + 1) * cupy.ones(N, cupy.float32)
        assert herring.allreduce(mine, "sum") is mine
        mine *= 2  # Runs right after the call, in the array's stream.
        stream.synchronize()
        assert bool((mine == 2 * total).all()), (number, mine[:3])
    half = cupy.full(N, rank + 1, cupy.float16)
    herring.allreduce(half, "max", algorithm="cuda-butterfly")
    assert bool((half == size).all())
    told = cupy.full(7, rank, cupy.int64)
    herring.broadcast(told, size - 1)
    assert bool((told == size - 1).all())
print(f"rank {rank} is done", flush=True)
herring.shutdown()
