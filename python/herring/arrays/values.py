"""Hands the values of one rank's variables to all, whatever dtypes the framework has."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from herring.arrays.collectives import check_same
from herring.arrays.grouped import grouped_broadcast
from herring.arrays.groups import Group, scope_of

__all__ = ["broadcast_values"]


def broadcast_values(
    values: Sequence[np.ndarray], root: int, *, name: str, group: Group | None = None
) -> list[np.ndarray]:
    """The arrays of rank `root` (collective).

    Args:
      values: any shapes and dtypes of fixed size; alike on all ranks. Not changed.
      root: the rank whose values all get, inside the group if there is one.
      name: identifies the operation across ranks.
      group: those who take part; None: all ranks.

    Returns:
      A list of arrays; without others, and on the root, those given.

    Raises:
      InvalidArgumentError: there is no such root.
      MismatchError: the lists differ between ranks.
      PeerLostError, TimeoutError: as `herring.broadcast`.
    """
    scope = scope_of(group)
    if scope.size == 1:
        return list(values)
    about = [(value.dtype.name, value.shape) for value in values]
    check_same("variables", _shortened(about), name=f"{name}.variables", group=group)
    raw = [np.array(value, order="C").reshape(-1).view(np.uint8) for value in values]
    grouped_broadcast(raw, root, name=name, group=group)
    if scope.rank == root:
        return list(values)
    return [one.view(value.dtype).reshape(value.shape) for one, value in zip(raw, values)]


def _shortened(about: list[tuple[str, tuple[int, ...]]]) -> str:
    """A text that differs where the lists do, and is readable where it is short."""
    text = ", ".join(f"{dtype} {list(shape)}" for dtype, shape in about)
    if len(text) <= 2000:
        return f"{len(about)} variables: {text}"
    return f"{len(about)} variables: {text[:500]} ... #{hashlib.sha256(text.encode()).hexdigest()}"
