"""Scripts of jobs with arrays on GPUs: real ones (`tests/gpu`) or those of the stand-in."""

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

# Lists of arrays whose results go to other arrays on the GPU.
GATHERS = (
    GPUS
    + """
from herring.arrays.operations import submit
from herring.arrays.devices import return_to

def list_of(kind, sent, places, *, late, **options):
    operation = submit(kind, sent, None, None, listed=True, anywhere=True, **options)
    for one in places:
        one.fill(-1, late)  # which the result must follow
    operation.wait()
    return_to(operation, places)

device = rank % gpus
for tells in (True, False):
    mine = GpuArray(np.zeros((50_000, 2), np.float32), device, tells)
    row = GpuArray(np.zeros(rank + 1, np.float32), device, tells)
    rows = size * (size + 1) // 2
    whole, table = (
        GpuArray(np.zeros(shape, np.float32), device, tells) for shape in ((size, 100_000), rows))
    parts = [50_000 // size + (r < 50_000 % size) for r in range(size)]
    part = GpuArray(np.zeros((parts[rank], 2), np.float32), device, tells)
    before, waits = driver.bytes(), driver.calls(b"cuStreamSynchronize")
    for step in range(4):
        mine.fill(rank + step, 2000)
        row.fill(rank + step)
        list_of("allgather", [mine, row], [whole, table], late=2000)
        whole.scale(2)  # right behind it
        assert (whole.get() == 2 * (np.arange(size)[:, None] + step)).all()
        wanted = np.concatenate([np.full(r + 1, r + step) for r in range(size)])
        assert (table.get() == wanted).all(), (table.get(), wanted)
        mine.store((np.arange(100_000) % 7 + rank).astype(np.float32).reshape(50_000, 2))
        list_of("reduce_scatter", [mine], [part], late=1000, op="sum")
        part.scale(2)
        first = 2 * sum(parts[:rank])
        wanted = 2 * (np.arange(first, first + 2 * parts[rank]) % 7 * size + sum(range(size)))
        assert (part.get().reshape(-1) == wanted).all()
    if before:
        (out, back, _), (after, returned, pageable) = before, driver.bytes()
        assert after - out == 4 * (800_000 + 4 * (rank + 1)), after - out
        come = 4 * 4 * (size * 100_000 + rows + 2 * parts[rank])
        assert returned - back == come and pageable == 0
        assert driver.calls(b"cuStreamSynchronize") == waits
    raises(herring.MismatchError, "result 0 of grouped_allgather", list_of, "allgather", [row],
           [mine], late=0)
assert driver.threads() == 1
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
    assert plan.node_stage == "host"
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
    if before and not on_host and plan.node_stage == "host":
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

# Rounds in which GPUs add; the results have the same bits as sums in host memory.
STAGES = (
    GPUS
    + """
import random
wanted = os.environ["WANTED"]
gpus = int(os.environ.get("GPUS", gpus))
total = 200_003 + 7 + 600_000 + 50_001
for dtype in (np.float32, np.float64, np.float16, np.int32):
    op = "average" if np.issubdtype(dtype, np.floating) else "max"
    sizes = [(n, np.dtype(dtype).name) for n in (200_003, 7, 600_000, 50_001)]
    plan, reference = (
        herring.PlannedReduction(sizes, name=name, op=op, device=gpu, buffer_bytes=1 << 19)
        for name, gpu in (("gpu", rank % gpus), ("host", None))
    )
    [(_, nbytes)] = plan.arenas
    items = nbytes // np.dtype(dtype).itemsize
    arena = GpuArray(np.zeros(items, dtype), rank % gpus)
    plan.place([arena])
    host = reference.arena(0).view(dtype)
    numbers = np.random.default_rng(rank)
    copied = driver.bytes()
    for step in range(8):
        active = not (step in (3, 5) and rank == size - 1 and size > 1)
        values = (100 * numbers.standard_normal(items)).astype(dtype)
        if active:
            if np.issubdtype(dtype, np.floating) and rank == 0:
                values[step] = [np.nan, np.inf, -0.0, 6e-8][step % 4]
            host[:] = values
        if step == 3:
            copied = driver.bytes()
        plan.begin(active)
        if active:
            arena.store(values, 1000)
            order = list(range(len(sizes)))
            random.shuffle(order)
            for index in order:
                plan.ready(index)
        plan.wait()
        reference.begin(active)
        if active:
            reference.ready_all(range(len(sizes)))
        reference.wait()
        assert plan.contributors == reference.contributors == size - (step in (3, 5) and size > 1)
        stage = plan.node_stage
        assert stage == (wanted if step > 1 else "host"), (stage, step)
        found = arena.get()
        for _, offset, count in plan.placements:
            part = slice(offset // arena.dtype.itemsize, (offset + count) // arena.dtype.itemsize)
            same = found[part].tobytes() == host[part].tobytes()
            assert same, (dtype, step, found[part][:4], host[part][:4])
        if active and dtype == np.float32:
            arena.scale(2, 500)  # which neighbours' results must not overtake
    if copied and dtype == np.float32:
        out, back, _ = (now - then for now, then in zip(driver.bytes(), copied))
        nodes = int(os.environ.get("NODES", 1))
        rounds_out = 3 if rank == size - 1 and size > 1 else 5
        whole, commands = 4 * total, 5 * 64 * len(plan.buffers)
        if wanted == "ipc" and nodes == 1:
            assert out == 0 and back <= commands, (out, back)
        elif wanted == "ipc":
            # One sum a node leaves.
            assert 0 < out < whole * 5 and whole * 5 <= back <= whole * 5 + commands, (out, back)
        elif wanted == "staged":
            # Out goes what others add, and this rank's sum; in comes what this one adds, and sums.
            assert whole * rounds_out <= out <= whole * 5, (out, whole, rounds_out)
            most = whole * (2 if nodes == 1 else 3)
            assert whole * 5 <= back <= most * 5 + commands, (back, whole)
    plan.close()
    reference.close()
assert driver.threads() == 1
herring.shutdown()
"""
)
