"""Gathers and scatters lists of arrays whose results go to other arrays on the GPU."""

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size
from herring.arrays.calls import CallOptions
from herring.arrays.devices import return_to
from herring.arrays.operations import submit
from support import raises


def list_of(kind, sent, places, *, late, **options):
    operation = submit(kind, sent, CallOptions(), listed=True, anywhere=True, **options)
    for one in places:
        one.fill(-1, late)  # The result must come after this.
    operation.wait()
    return_to(operation, places)


device = rank % gpus
for tells in (True, False):
    mine = GpuArray(np.zeros((50_000, 2), np.float32), device, tells)
    row = GpuArray(np.zeros(rank + 1, np.float32), device, tells)
    rows = size * (size + 1) // 2
    whole, table = (
        GpuArray(np.zeros(shape, np.float32), device, tells) for shape in ((size, 100_000), rows)
    )
    parts = [50_000 // size + (r < 50_000 % size) for r in range(size)]
    part = GpuArray(np.zeros((parts[rank], 2), np.float32), device, tells)
    before, waits = driver.bytes(), driver.calls(b"cuStreamSynchronize")
    for step in range(4):
        mine.fill(rank + step, 2000)
        row.fill(rank + step)
        list_of("allgather", [mine, row], [whole, table], late=2000)
        whole.scale(2)  # Runs right after the copy back.
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
    raises(
        herring.MismatchError,
        "result 0 of grouped_allgather",
        list_of,
        "allgather",
        [row],
        [mine],
        late=0,
    )
assert driver.threads() == 1
herring.shutdown()
