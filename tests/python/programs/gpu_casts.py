"""Runs rounds whose float32 gradients are cast on GPUs to the wire dtype, and back.

The results have the bits of rounds in host memory whose gradients have the wire dtype.
"""

import os
import random

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size

wanted = os.environ.get("WANTED")  # None: any stage
gpus = int(os.environ.get("GPUS", gpus))
counts = [200_003, 7, 0, 600_000, 50_001]


def narrow(values: np.ndarray, wire: str) -> np.ndarray:
    """Returns the bits of float32 values in the wire dtype, rounded to nearest even."""
    if wire == "float16":
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        half[np.isnan(half)] = np.nan
        return np.where(np.isnan(values), np.uint16(0x7E00), half.view(np.uint16))
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def wide(bits: np.ndarray, wire: str) -> np.ndarray:
    if wire == "float16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def special(values: np.ndarray) -> None:
    """Writes values that are hard to round."""
    chosen = [np.nan, -np.inf, -0.0, 6e-8, 3e-39, 65519.9, 65520, 1e6, 1 + 2**-8, 1 + 2**-11]
    values[rank::997] = np.resize(np.float32(chosen), len(values[rank::997]))


for wire in ("bfloat16", "float16"):
    options = {"op": "average", "buffer_bytes": 1 << 18}
    # Another dtype is not cast, and has an arena of its own.
    plan = herring.PlannedReduction(
        [*((n, "float32") for n in counts), (5_003, "float64")],
        name="gpu",
        wire_dtype=wire,
        device=rank % gpus,
        **options,
    )
    reference = herring.PlannedReduction(
        [*((n, wire) for n in counts), (5_003, "float64")], name="host", **options
    )
    assert plan.arenas == [("float32", 4 * sum(counts)), ("float64", 8 * 5_003)], plan.arenas
    assert [arena for _, arena in reference.arenas] == [2 * sum(counts), 8 * 5_003]
    for (_, offset, nbytes), (_, at, half), count in zip(
        plan.placements, reference.placements, counts
    ):
        assert (offset, nbytes) == (2 * at, 2 * half) and nbytes == 4 * count
    assert sum(nbytes for _, _, nbytes in plan.buffers) == sum(n for _, n in plan.arenas)
    arena = GpuArray(np.zeros(sum(counts), np.float32), rank % gpus)
    other = GpuArray(np.zeros(5_003, np.float64), rank % gpus)
    plan.place([arena, other])
    host = [reference.arena(0).view(np.uint16), reference.arena(1).view(np.float64)]
    numbers = np.random.default_rng(rank)
    copied = driver.bytes()
    for step in range(8):
        active = not (step in (3, 5) and rank == size - 1 and size > 1)
        values = (100 * numbers.standard_normal(sum(counts))).astype(np.float32)
        if step % 2:
            special(values)
        doubles = numbers.standard_normal(5_003)
        if active:
            host[0][:] = narrow(values, wire)
            host[1][:] = doubles
        if step == 3:
            copied = driver.bytes()
        plan.begin(active)
        if active:
            arena.store(values, 1000)
            other.store(doubles)
            order = list(range(len(counts) + 1))
            random.shuffle(order)
            if step == 4:
                plan.ready_all(order)
            else:
                for index in order:
                    plan.ready(index)
        plan.wait()
        reference.begin(active)
        if active:
            reference.ready_all(range(len(counts) + 1))
        reference.wait()
        assert plan.contributors == reference.contributors == size - (step in (3, 5) and size > 1)
        expected_stage = wanted if step > 1 else "host"
        assert wanted is None or plan.node_stage == expected_stage, (plan.node_stage, step)
        found, expected = arena.get(), wide(host[0], wire)
        same = found.view(np.uint32) == expected.view(np.uint32)
        assert same.all(), (wire, step, found[~same][:4], expected[~same][:4])
        assert (other.get() == host[1]).all()
        arena.scale(2, 500)  # Nothing may still read or write the arena.
        plan.wait()  # And what was cast once is not cast again.
        again, twice = arena.get(), 2 * expected
        assert (np.isnan(twice) | (again == twice)).all(), (wire, step)
    if copied and wanted == "host":
        out, back, pageable = (now - then for now, then in zip(driver.bytes(), copied))
        whole = 2 * sum(counts) + 8 * 5_003
        assert out == whole * (3 if rank == size - 1 and size > 1 else 5), (out, whole)
        assert back == whole * 5 and pageable == 0, (back, whole)
    plan.close()
    reference.close()

# A gradient that has the wire dtype already: processors cast the others, as without GPUs.
plan = herring.PlannedReduction(
    [(1000, "float32"), (1000, "float16")], name="both", wire_dtype="float16", device=rank % gpus
)
assert plan.arenas == [("float32", 4000), ("float16", 2000)], plan.arenas
arenas = [GpuArray(np.full(1000, rank, one), rank % gpus) for one in (np.float32, np.float16)]
plan.place(arenas)
for step in range(4):
    plan.begin()
    for one in arenas:
        one.store(np.full(1000, rank + step, one.dtype), 500)
        plan.ready(arenas.index(one))
    plan.wait()
    for one in arenas:
        assert (one.get() == step + (size - 1) / 2).all(), (step, one.get()[:3])
plan.close()
assert driver.threads() == 1
herring.shutdown()
