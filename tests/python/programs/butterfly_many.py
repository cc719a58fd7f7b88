"""Starts many operations in another order on each rank, from threads and in groups.

They exceed what the kernels serve at a time, so the host sums the rest, with the same bits.
"""

import random
import threading

import numpy as np

import herring
from gpu_job import GpuArray, gpus, rank, size

gpu = rank % gpus
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(10)]
    random.Random(rank + 100 * attempt).shuffle(names)
    handles = []
    for name in names:
        number = int(name.split(".")[1])
        dtype = ("float32", "int32", "float64")[number % 3]  # Some kernels are not loaded yet.
        array = GpuArray(np.full((5, 3_000, 900_000)[number % 3], rank + number, dtype), gpu)
        handles.append(
            (
                number,
                array,
                herring.allreduce_async(array, "sum", name=name, algorithm="cuda-butterfly"),
            )
        )
    random.Random(rank + 7).shuffle(handles)
    for number, array, handle in handles:
        assert handle.wait(600) is array and handle.wait() is array and handle.done()
        assert (array.get() == sum(r + number for r in range(size))).all(), (attempt, number)


def calls(thread):
    array = GpuArray(np.zeros(20_000, np.float32), gpu, tells=thread % 2)
    for step in range(8):
        array.fill(rank + step + thread)
        herring.allreduce(array, "sum", name=f"t{thread}", algorithm="cuda-butterfly")
        array.scale(2)
        wanted = 2 * sum(r + step + thread for r in range(size))
        assert (array.get() == wanted).all(), (thread, step, array.get()[:3], wanted)
    # The array stays, as its memory would be freed only when no call of another thread waits.
    done.append((thread, array))


done = []
threads = [threading.Thread(target=calls, args=(n,)) for n in range(3)]
[one.start() for one in threads]
[one.join() for one in threads]
assert sorted(thread for thread, _ in done) == [0, 1, 2]

group = herring.new_group(range(size // 2, size))
if rank >= size // 2:
    array = GpuArray(np.full(50_001, rank, np.float32), gpu)
    herring.allreduce(array, "average", group=group, algorithm="cuda-butterfly")
    members = range(size // 2, size)
    assert (array.get() == np.float32(sum(members)) / np.float32(len(members))).all()
# Nobody waits for these operations, and their arrays are dropped.
for _ in range(3):
    herring.allreduce_async(
        GpuArray(np.ones(1_000_000, np.float32), gpu), "sum", algorithm="cuda-butterfly"
    )
herring.barrier()
array = GpuArray(np.ones(1000, np.float32), gpu)
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
assert (array.get() == size).all()
herring.shutdown()
