"""Adasum: a sum of gradients that leaves out what they have in common (Maleki et al., 2020).

Two vectors a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum where they are
orthogonal, their mean where they are equal. Those of more ranks are combined in pairs, over a
binary tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from herring.errors import InvalidArgumentError

__all__ = ["adasum", "require_power_of_two"]


def require_power_of_two(ranks: int) -> None:
    """Raises InvalidArgumentError unless Adasum can combine so many."""
    if ranks & (ranks - 1):
        raise InvalidArgumentError(
            f"Adasum combines pairs of pairs: {ranks} ranks take part; it must be a power of two"
        )


def adasum(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Combines the vectors of all ranks; dot products are taken in float64.

    Args:
      rows: one flat array per rank, in rank order, float32 or float64; a power of two of them.

    Returns:
      A new array of their dtype.
    """
    level = list(rows)
    while len(level) > 1:
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2])]
    return level[0].copy() if len(rows) == 1 else level[0]


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    long_a, long_b = a.astype(np.float64), b.astype(np.float64)
    dot = float(long_a @ long_b)
    square_a, square_b = float(long_a @ long_a), float(long_b @ long_b)
    of_a = 1 - dot / (2 * square_a) if square_a else 1.0
    of_b = 1 - dot / (2 * square_b) if square_b else 1.0
    combined: np.ndarray = a.dtype.type(of_a) * a + b.dtype.type(of_b) * b
    return combined
