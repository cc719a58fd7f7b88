"""Runs planned rounds of gradients on GPUs; some ranks contribute nothing or are on the host."""

import os
import random

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

wire = os.environ.get("WIRE", "bfloat16")
refused = "STANDIN_FAIL" in os.environ  # memory cannot be pinned
sizes = [(50_000, "float32"), (300_000, "float32"), (7, "float32"), (1_000_000, "float32")]
for tells in (True, False):
    on_host = tells and rank == size - 1
    plan = herring.PlannedReduction(
        sizes,
        name="p",
        op="sum",
        note_bytes=size,
        device=None if on_host else rank % gpus,
        buffer_bytes=1 << 20,
        wire_dtype=None if tells else wire,
    )
    assert plan.node_stage == "host"
    [(_, nbytes)] = plan.arenas
    if on_host:
        arena = plan.arena(0).view(np.float32)
    else:
        arena = GpuArray(np.zeros(nbytes // 4, np.float32), rank % gpus, tells)
        plan.place([arena])
    before = driver.bytes()
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
        if step == 2:
            waits = driver.waits()  # From now on the same processors add.
        there = [r for r in range(size) if not (step == 3 and r == 1)]
        assert plan.notes == bytes(r in there for r in range(size))
        assert plan.contributors == len(there)
        if not on_host:
            arena.scale(2)  # Runs right after the copy back, like an optimizer.
        found = 2 * arena if on_host else arena.get()
        for _, offset, count in plan.placements:
            part = found[offset // 4 : (offset + count) // 4]
            assert (part == 2 * sum(r + step for r in there)).all(), (step, part[:3])
    if before and not on_host and plan.node_stage == "host":
        # In each round, every link carries all bytes out once and in once.
        (out, back, _), (after, returned, pageable) = before, driver.bytes()
        rounds_out = 5 if rank == 1 and size > 1 else 6
        # The GPU casts to 16 bits; processors make 8 of them.
        total = sum((2 if wire == "bfloat16" and not tells else 4) * n for n, _ in sizes)
        assert after - out == rounds_out * total, (after - out, total)
        assert returned - back == 6 * total and (pageable > 0) == refused
    # Nothing blocks in a step, where memory is pinned.
    assert refused or driver.waits() == waits
    plan.close()
assert driver.threads() == 1
herring.shutdown()
