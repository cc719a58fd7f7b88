"""Hands the values of one rank's variables to all ranks, for any dtype of a framework."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from herring.arrays.grouped import grouped_broadcast
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import check_same
from herring.base.units import counted
from herring.errors import InvalidArgumentError


def broadcast_values(
    values: Sequence[np.ndarray], root: int, *, name: str, group: Group | None = None
) -> list[np.ndarray]:
    """Returns the arrays of rank `root` on every rank (collective).

    Args:
      values: Arrays of any shapes and of any dtypes of fixed size, equal on all ranks. They are not
        changed.
      root: The rank whose values all ranks get; with `group`, a rank inside it.

    Returns:
      A list of arrays. The root, and a rank without others, gets the given arrays themselves.

    Raises:
      InvalidArgumentError: `root` is not a rank of the job or group, or a value has a dtype
        without a fixed size, such as strings of TensorFlow.
    """
    scope = scope_of(group)
    if scope.size == 1:
        return list(values)
    about = [(value.dtype.name, value.shape) for value in values]
    check_same("variables", _shortened(about), name=f"{name}.variables", group=group)
    if any(value.dtype.hasobject for value in values):
        raise InvalidArgumentError(f"{name}: strings and objects are sent by broadcast_object()")
    raw = [np.array(value, order="C").reshape(-1).view(np.uint8) for value in values]
    grouped_broadcast(raw, root, name=name, group=group)
    if scope.rank == root:
        return list(values)
    return [one.view(value.dtype).reshape(value.shape) for one, value in zip(raw, values)]


def _shortened(about: list[tuple[str, tuple[int, ...]]]) -> str:
    """Returns a text that differs whenever the lists differ, and is readable if it is short."""
    text = ", ".join(f"{dtype} {list(shape)}" for dtype, shape in about)
    if len(text) <= 2000:
        return f"{counted(len(about), 'variable')}: {text}"
    return f"{len(about)} variables: {text[:500]} ... #{hashlib.sha256(text.encode()).hexdigest()}"
