"""Runs rounds in which GPUs add; the results have the same bits as sums in host memory."""

import os
import random

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

wanted = os.environ.get("WANTED")  # None: any stage
gpus = int(os.environ.get("GPUS", gpus))
total = 200_003 + 7 + 600_000 + 50_001
dtypes = (np.float32, np.float64, np.float16, np.int32)
for dtype in dtypes[: int(os.environ.get("DTYPES", len(dtypes)))]:
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
            copied, waits = driver.bytes(), driver.waits()
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
        assert wanted is None or stage == (wanted if step > 1 else "host"), (stage, step)
        found = arena.get()
        for _, offset, count in plan.placements:
            part = slice(offset // arena.dtype.itemsize, (offset + count) // arena.dtype.itemsize)
            same = found[part].tobytes() == host[part].tobytes()
            assert same, (dtype, step, found[part][:4], host[part][:4])
        if active and dtype == np.float32:
            arena.scale(2, 500)  # Neighbours' results must not overtake this.
    assert driver.waits() == waits  # Nothing blocks in a step, whoever adds.
    if copied and dtype == np.float32:
        out, back, pageable = (now - then for now, then in zip(driver.bytes(), copied))
        assert pageable == 0  # The driver may wait for copies of other memory.
        nodes = int(os.environ.get("NODES", 1))
        rounds_out = 3 if rank == size - 1 and size > 1 else 5
        whole, commands = 4 * total, 5 * 64 * len(plan.buffers) * (1 if nodes == 1 else 2)
        if wanted == "ipc" and nodes == 1:
            assert out == 0 and back <= commands, (out, back)
        elif wanted == "ipc":
            # The sum of a rank's slices leaves, and their average comes: all of it for each node.
            assert 0 < out < whole * 5 and out < back <= out + commands, (out, back)
            all_out = herring.allreduce(np.array([out]), "sum", name="out")[0]
            assert all_out == whole * 5 * nodes, (all_out, whole)
        elif wanted == "staged":
            # A rank copies out what others add and its sum; it copies in what it adds, and sums.
            assert whole * rounds_out <= out <= whole * 5, (out, whole, rounds_out)
            most = whole * (2 if nodes == 1 else 3)
            assert whole * 5 <= back <= most * 5 + commands, (back, whole)
    plan.close()
    reference.close()
assert driver.threads() == 1
herring.shutdown()
