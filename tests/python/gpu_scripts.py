"""Scripts of jobs whose arrays lie on GPUs: real ones (`tests/gpu`) and those of the stand-in."""

from __future__ import annotations

GPUS = """
from gpus import Driver, GpuArray

driver = Driver()
driver.jitter(int(os.environ.get("JITTER", "300")))
herring.init()
rank, size = herring.rank(), herring.size()
gpus = driver.count()
"""

COLLECTIVES = (
    GPUS
    + """
for tells in (True, False):
    array = GpuArray(np.zeros(300_000, np.float32), device=rank % gpus, tells=tells)
    for step in range(5):
        array.fill(rank + step, 2000)  # a kernel of 2 ms, which the copy must wait for
        assert herring.allreduce(array, "sum", name="x") is array
        array.scale(2)  # right behind it
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

# Some ranks have theirs in host memory, and the bits are the same.
values = np.random.default_rng(rank).standard_normal(50_000).astype(np.float32)
reference = herring.allreduce(values.copy(), "average")
mixed = GpuArray(values) if rank == 0 else values
herring.allreduce(mixed, "average")
found = mixed.get() if rank == 0 else mixed
assert (found.view(np.uint32) == reference.view(np.uint32)).all()

if counted := driver.bytes():
    out, back, pageable = counted
    assert pageable == 0 and 0 < out <= back
assert driver.threads() == 1  # no other thread calls the driver
assert driver.calls(b"cuStreamSynchronize") == 0
herring.shutdown()
"""
)

ROUNDS = (
    GPUS
    + """
import random
sizes = [(50_000, "float32"), (300_000, "float32"), (7, "float32"), (1_000_000, "float32")]
for tells in (True, False):
    on_host = tells and rank == size - 1
    plan = herring.PlannedReduction(
        sizes, name="p", op="sum", note_bytes=size, device=None if on_host else rank % gpus,
        buffer_bytes=1 << 20, wire_dtype=None if tells else "bfloat16",
    )
    [(_, nbytes)] = plan.arenas
    if on_host:
        arena = plan.arena(0).view(np.float32)
    else:
        arena = GpuArray(np.zeros(nbytes // 4, np.float32), rank % gpus, tells)
        plan.place([arena])
    before = driver.bytes()
    waits = driver.calls(b"cuStreamSynchronize")
    for step in range(6):
        active = not (step == 3 and rank == 1)
        plan.begin(active)
        if active:
            if on_host:
                arena[:] = rank + step
            else:
                arena.fill(rank + step, 3000)
            order = list(range(len(sizes)))
            random.shuffle(order)
            for index in order:
                plan.ready(index)
            plan.note(bytes(r == rank for r in range(size)))
        plan.wait()
        there = [r for r in range(size) if not (step == 3 and r == 1)]
        assert plan.notes == bytes(r in there for r in range(size))
        assert plan.contributors == len(there)
        if not on_host:
            arena.scale(2)  # right behind it, as an optimizer would
        found = 2 * arena if on_host else arena.get()
        for _, offset, count in plan.placements:
            part = found[offset // 4 : (offset + count) // 4]
            assert (part == 2 * sum(r + step for r in there)).all(), (step, part[:3])
    if before and not on_host:
        # Each link carries all bytes out and in once a round.
        (out, back, _), (after, returned, pageable) = before, driver.bytes()
        rounds_out = 5 if rank == 1 and size > 1 else 6
        total = sum(4 * n for n, _ in sizes)
        assert after - out == rounds_out * total, (after - out, total)
        assert returned - back == 6 * total and pageable == 0
        assert driver.calls(b"cuStreamSynchronize") == waits  # nothing blocks in a step
    plan.close()
assert driver.threads() == 1
herring.shutdown()
"""
)
