"""Compares all-reduces of every dtype and operator with NumPy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import herring

FLOATS = ["float32", "float64", "float16"]
DTYPES = [*FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool"]


def combined(wide: Any, dtype: Any, op: str) -> Any:
    """Returns the exact result of arrays in float64, rounded as Herring documents."""
    if op == "average":
        exact = wide if dtype == np.float64 else wide.sum(0, keepdims=True).astype(np.float32)
        return (exact.sum(0) / exact.dtype.type(len(wide))).astype(dtype)
    found = {"sum": wide.sum, "min": wide.min, "max": wide.max, "product": wide.prod}[op](0)
    if dtype.kind == "b":
        return found > 0
    return (found.astype(np.int64) if dtype.kind in "iu" else found).astype(dtype)  # integers wrap


def check_reductions(counts: Iterable[int], **options: Any) -> None:
    """Checks arrays of these lengths, passing `options` to `herring.allreduce`."""
    rank, size = herring.rank(), herring.size()
    for count in counts:
        base = np.arange(count) % 5 + 1
        for dtype in DTYPES:
            stack = np.stack([base + r for r in range(size)])
            stack = (stack % 2 if dtype == "bool" else stack).astype(dtype)
            wide = stack.astype(np.float64)
            for op in ("sum", "min", "max", "product", "average"):
                if op == "average" and dtype not in FLOATS:
                    continue
                if dtype == "float16" and op == "product" and "algorithm" in options:
                    continue  # each step rounds above 2048
                array = stack[rank].copy()
                assert herring.allreduce(array, op, **options) is array
                assert np.array_equal(array, combined(wide, stack.dtype, op)), (
                    options,
                    dtype,
                    op,
                    count,
                    array[:4],
                )
    scaled = np.full(100_000, 1.0 + rank, np.float32)
    herring.allreduce(scaled, "sum", prescale=0.5, postscale=4.0, **options)
    assert (scaled == 2.0 * size * (size + 1) / 2).all(), scaled[:3]
    shared = herring.empty((7, 30_000))
    shared[:] = rank
    herring.allreduce(shared, "max", **options)
    assert (shared == size - 1).all()
