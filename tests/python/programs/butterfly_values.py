"""Compares ``algorithm="cuda-butterfly"`` with the butterfly of processors, bit by bit."""

import numpy as np

import herring
from gpu_job import GpuArray, rank, size


def values_of(dtype, count, r):
    """Returns the contribution of rank `r`; floats include special values."""
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
            values[place:count:97] = value
    return values


def same(found, wanted):
    return found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def check(dtype, count, op, device, **options):
    """Compares one call with the butterfly on processors.

    Returns whether the GPU computes sums for it. With `device` None, the array lies in host memory.
    """
    mine = values_of(dtype, count, rank)
    wanted = mine.copy()
    with np.errstate(all="ignore"):
        herring.allreduce(wanted, op, algorithm="butterfly", **options)
    if device is None:
        herring.allreduce(mine, op, algorithm="cuda-butterfly", **options)
        found = mine
    else:
        array = GpuArray(mine, device)
        assert herring.allreduce(array, op, algorithm="cuda-butterfly", **options) is array
        found = array.get()
    assert same(found, wanted), (dtype, count, op, options, np.flatnonzero(found != wanted)[:5])
    return device is not None and count > 0 and size > 1
