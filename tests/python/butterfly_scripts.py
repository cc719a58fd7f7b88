"""Scripts of jobs with ``algorithm="cuda-butterfly"``, for real GPUs and for the stand-in."""

from __future__ import annotations

from gpu_scripts import GPUS

__all__ = ["BITS", "MANY", "VALUES"]

# Contributions of a rank in every dtype; floats include special values.
VALUES = """
def values_of(dtype, count, r):
    generator = np.random.default_rng(1000 * r + count)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return generator.integers(0, 2, count).astype(bool)
    if kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, count, dtype, endpoint=True)
    with np.errstate(all="ignore"):
        scale = 10.0 ** generator.integers(-4, 4, count)
        values = (generator.standard_normal(count) * scale).astype(dtype)
    special = (np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).smallest_subnormal)
    for place, value in enumerate(special):
        if generator.random() < 0.5:
            values[place : count : 97] = value
    return values

def same(found, wanted):
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()

by_gpu = 0  # calls whose sums the GPU takes

def check(dtype, count, op, device, **options):
    global by_gpu
    by_gpu += device is not None and count > 0 and size > 1
    mine = values_of(dtype, count, rank)
    wanted = mine.copy()
    with np.errstate(all="ignore"):
        herring.allreduce(wanted, op, algorithm="butterfly", **options)
    if device is None:  # this rank's array lies in host memory
        herring.allreduce(mine, op, algorithm="cuda-butterfly", **options)
        found = mine
    else:
        array = GpuArray(mine, device)
        assert herring.allreduce(array, op, algorithm="cuda-butterfly", **options) is array
        found = array.get()
    assert same(found, wanted), (dtype, count, op, options, np.flatnonzero(found != wanted)[:5])
"""

BITS = (
    GPUS
    + VALUES
    + """
gpu = rank % gpus
for count in (0, 1, 2, 3, size, 1009, 300_007, 3_000_001):
    check("float32", count, "average", gpu)
for dtype in ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"):
    floats = dtype.startswith("float")
    for op in ("sum", "min", "max", "product") + (("average",) if floats else ()):
        check(dtype, 5003, op, gpu)
        if floats:
            check(dtype, 40_001, op, gpu, prescale=0.7, postscale=1.3)
            check(dtype, 7, op, gpu, prescale=3.0)
# Some arrays lie in host memory.
for count in (1, 100_003, 1_500_001):
    check("float32", count, "average", None if rank == 0 else gpu)
    check("float32", count, "sum", None if rank % 2 else gpu, prescale=0.3)

# Behind a kernel that makes it, and before one that uses it; nobody waits for the device.
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
        assert after - out == 6 * 4 * array.size  # each byte once a time
        # Kernels read host memory: what is copied in are commands of 64 bytes.
        assert returned - back < 6 * 64 * 200 and pageable == 0
assert herring.stats()["gpu_sums"] == by_gpu, (herring.stats()["gpu_sums"], by_gpu)
assert driver.threads() == 1  # no other thread calls the driver
herring.shutdown()
"""
)

# Many operations in flight, in a different order on each rank, from threads and in groups. They
# exceed what the kernels serve at a time, so the host sums the rest, with the same bits.
MANY = (
    GPUS
    + VALUES
    + """
import random, threading
gpu = rank % gpus
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(10)]
    random.Random(rank + 100 * attempt).shuffle(names)
    handles = []
    for name in names:
        number = int(name.split(".")[1])
        dtype = ("float32", "int32", "float64")[number % 3]  # kernels that are not loaded yet, too
        array = GpuArray(np.full((5, 3_000, 900_000)[number % 3], rank + number, dtype), gpu)
        handles.append((number, array, herring.allreduce_async(
            array, "sum", name=name, algorithm="cuda-butterfly")))
    random.Random(rank + 7).shuffle(handles)
    for number, array, handle in handles:
        assert handle.wait(60) is array and handle.wait() is array and handle.done()
        assert (array.get() == sum(r + number for r in range(size))).all(), (attempt, number)

def calls(thread):
    array = GpuArray(np.zeros(20_000, np.float32), gpu, tells=thread % 2)
    for step in range(8):
        array.fill(rank + step + thread)
        herring.allreduce(array, "sum", name=f"t{thread}", algorithm="cuda-butterfly")
        array.scale(2)
        wanted = 2 * sum(r + step + thread for r in range(size))
        assert (array.get() == wanted).all(), (thread, step, array.get()[:3], wanted)
    done.append(thread)

done = []
threads = [threading.Thread(target=calls, args=(n,)) for n in range(3)]
[one.start() for one in threads]
[one.join() for one in threads]
assert sorted(done) == [0, 1, 2]

group = herring.new_group(range(size // 2, size))
if rank >= size // 2:
    array = GpuArray(np.full(50_001, rank, np.float32), gpu)
    herring.allreduce(array, "average", group=group, algorithm="cuda-butterfly")
    members = range(size // 2, size)
    assert (array.get() == np.float32(sum(members)) / np.float32(len(members))).all()
# One that nobody waits for, and its array goes.
for step in range(3):
    herring.allreduce_async(GpuArray(np.ones(1_000_000, np.float32), gpu), "sum",
                            algorithm="cuda-butterfly")
herring.barrier()
array = GpuArray(np.ones(1000, np.float32), gpu)
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
assert (array.get() == size).all()
herring.shutdown()
"""
)
