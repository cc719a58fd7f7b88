"""Collectives with a root: one rank gets everything, or hands everything out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from herring.arrays.arguments import Operator, Timeout, rank_of
from herring.arrays.calls import CallOptions
from herring.arrays.collectives import checked_splits, exchange, scattered, shape_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import broadcast_plain
from herring.errors import InvalidArgumentError

__all__ = ["gather", "reduce", "scatter"]


def reduce(
    array: Any,
    op: Operator = "average",
    root: int = 0,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> np.ndarray | None:
    """Reduces `array` over all ranks and leaves the result on one of them.

    Each rank sends its array once, and only `root` receives an array, so the other ranks move half
    the bytes of `allreduce`. The additions form one fixed tree over the ranks, so the same inputs
    give the same bits.

    Args:
      array: An array with at least one dimension; equal shape and dtype on all ranks. Not changed.
      root: The rank that gets the result (with `group`, inside it); equal on all ranks.

    Returns:
      A new array on `root` (a bfloat16 array comes as its bits in uint16); None on other ranks.
    """
    call = CallOptions(name, timeout, group).named("reduce")
    with call.refusing("reduce_scatter"):
        splits = _all_to(root, array, "reduce", group)
    found = scattered(array, splits, call, op=op, prescale=prescale, postscale=postscale)
    return found if scope_of(group).rank == root else None


def gather(
    array: Any,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> np.ndarray | None:
    """Concatenates the arrays of all ranks along the first dimension on one rank.

    Args:
      array: An array with at least one dimension. The first dimension may differ between ranks; the
        other dimensions and the dtype may not.
      root: The rank that gets the result (with `group`, inside it); equal on all ranks.

    Returns:
      A new array on `root` with the rows in rank order (a bfloat16 array comes as its bits in
      uint16); None on other ranks.
    """
    call = CallOptions(name, timeout, group).named("gather")
    with call.refusing("alltoall"):
        splits = _all_to(root, array, "gather", group)
    found = exchange(array, splits, call, f"gather to rank {root}")
    return found if scope_of(group).rank == root else None


def scatter(
    array: Any = None,
    root: int = 0,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> np.ndarray:
    """Hands each rank one part of the first dimension of the root's array.

    Args:
      array: An array with at least one dimension, not bfloat16. It is read on `root` only, and not
        changed.
      root: The rank whose array is handed out (with `group`, inside it); equal on all ranks.
      splits: The number of rows for each rank, in rank order; read on `root` only. None means equal
        parts.

    Returns:
      A new array with this rank's rows.

    Raises:
      InvalidArgumentError: The root's array or `splits` does not fit, or another argument cannot be
        used on some rank.
    """
    call = CallOptions(name, timeout, group).named("scatter")
    rows: list[int] = []
    whole = np.empty(0)
    with call.part("shape.length").refusing("broadcast"):
        sends = rank_of(root, scope_of(group).size, "scatter", group) == scope_of(group).rank
        if sends:
            whole = _on_host(array)
            rows = checked_splits("scatter", len(whole), splits, group)
    about = (whole.dtype.str, whole.shape[1:]) if sends else None
    # The other ranks pass no array, so they learn from the root what to expect.
    dtype, tail = broadcast_plain(
        about, root, name=f"{call.name}.shape", timeout=timeout, group=group
    )
    if not sends:
        whole, rows = np.empty((0, *tail), dtype), [0] * scope_of(group).size
    return exchange(whole, rows, call, f"scatter from rank {root}")


def _all_to(root: int, array: Any, kind: str, group: Group | None) -> list[int]:
    """Returns splits that give all rows to `root`."""
    rank_of(root, scope_of(group).size, kind, group)
    shape = shape_of(array)
    if len(shape) == 0:
        raise InvalidArgumentError(f"{kind} needs an array with at least one dimension")
    return [int(shape[0]) if rank == root else 0 for rank in range(scope_of(group).size)]


def _on_host(array: Any) -> np.ndarray:
    views = hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray)
    try:
        whole = np.from_dlpack(array) if views else np.asarray(array)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InvalidArgumentError(
            f"scatter takes arrays that NumPy can view, not {type(array).__name__}: {error}"
        ) from None
    if whole.ndim == 0:
        raise InvalidArgumentError("scatter needs an array with at least one dimension")
    return whole
