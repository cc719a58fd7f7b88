"""Adasum: adds gradients without adding their common part twice (Maleki et al., 2020).

Two vectors a and b become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b: their sum if they are
orthogonal, their mean if they are equal. The vectors of more than two ranks are combined in pairs,
along a binary tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from herring.errors import InvalidArgumentError


def require_power_of_two(ranks: int) -> None:
    """Raises InvalidArgumentError unless the number of ranks is a power of two."""
    if ranks & (ranks - 1):
        raise InvalidArgumentError(
            f"Adasum combines ranks in pairs: {ranks} ranks take part; it must be a power of two"
        )


def adasum(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Combines the vectors of all ranks; dot products are computed in float64.

    Args:
      rows: one 1-D array per rank, in rank order, float32 or float64. The number of arrays must be
        a power of two.

    Returns:
      A new array of the same shape and dtype.
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
