"""Lists of arrays for grouped collectives."""

from __future__ import annotations

import numpy as np

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]
SHAPES = [(), (0,), (1,), (3, 5), (1000,), (7, 11, 13), (60_000,)]


def listed(seed, dtypes=DTYPES, shapes=SHAPES):
    """Returns arrays of zeros and ones, whose sums are exact in every dtype, in a random order."""
    random = np.random.default_rng(seed)
    places = random.permutation(len(dtypes) * len(shapes))
    return [
        np.asarray(
            np.random.default_rng([seed, p])
            .integers(0, 2, shapes[p % len(shapes)])
            .astype(dtypes[p // len(shapes)])
        )
        for p in places
    ]


def on(r, arrays):
    """Returns the contribution of rank `r`: odd ranks swap zeros and ones in the arrays."""
    odd = r % 2 == 1
    return [np.asarray((1 - a.astype(np.int8) if odd else a).astype(a.dtype)) for a in arrays]


def same(found, expected):
    """Asserts that the lists have the same values and dtypes."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert np.asarray(a).dtype == b.dtype and np.array_equal(a, b), (a, b)
