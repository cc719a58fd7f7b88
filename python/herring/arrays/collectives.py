"""Collectives on arrays in host memory that have the buffer protocol or DLPack.

All-reduce and broadcast also take arrays on a GPU, one or a list, by DLPack. Some ranks may have
theirs in host memory. After `Handle.wait`, work queued on the GPU sees the results.

A name identifies an operation across ranks, which may submit their operations in any order. The
n-th call with a name on one rank meets the n-th on every other rank. Calls without a name are
counted by kind. Each `herring.Group` counts by itself (``group=``; without one, all ranks take
part). If a rank refuses a call or comes too late, every rank that makes the call gets the same
error. Arrays must be contiguous (C order). Operations in place need a writable array, and leave it
undefined when they fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import Array, Operator, Timeout, count_of, shown
from herring.arrays.calls import CallOptions
from herring.arrays.groups import Group, scope_of
from herring.arrays.operations import Handle, submit
from herring.arrays.runtime import job
from herring.base.split import even_parts
from herring.base.units import counted
from herring.errors import InvalidArgumentError

__all__ = ["allgather", "alltoall", "barrier", "broadcast", "empty", "reduce_scatter"]

_NUMPY = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": np.uint16,  # the bits, because NumPy has no bfloat16
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
}


def broadcast(
    array: Array,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Array:
    """Copies `array` of rank `root` into `array` of every rank, in place.

    Args:
      array: An array of any shape and of a dtype that `allreduce` takes; equal on all ranks. It
        must be writable, on the root too.
      root: The rank whose values are copied; with `group`, a rank inside it.

    Returns:
      `array`.
    """
    Handle(submit("broadcast", array, CallOptions(name, timeout, group), root=root), array).wait()
    return array


def collect(
    kind: str,
    array: Any,
    call: CallOptions,
    splits: Sequence[int] | None = None,
    agreement: str = "",
    **options: Any,
) -> tuple[Any, np.ndarray]:
    def splits_of_kind() -> dict[str, Any]:
        if len(shape_of(array)) == 0:
            raise InvalidArgumentError(f"{kind} needs an array with at least one dimension")
        if kind == "alltoall" and 0 in _tail(array):
            raise InvalidArgumentError(f"alltoall: rows of shape {_tail(array)} have no elements")
        if kind == "alltoall" or splits is not None:
            return {"splits": checked_splits(kind, shape_of(array)[0], splits, call.group)}
        return {}

    operation = submit(kind, array, call, agreement=agreement, check=splits_of_kind, **options)
    operation.wait()
    return operation, operation.result().view(_NUMPY[_core.dtype_of(array)])


def shape_of(array: Any) -> tuple[int, ...]:
    """Returns the shape of an array, or of the array that NumPy would make of a value."""
    try:
        if hasattr(array, "shape"):
            return tuple(array.shape)
        made = np.asarray(array)
        if made.dtype.hasobject:  # before NumPy 1.24, rows of different lengths too
            raise TypeError("NumPy makes an array of Python objects of it")
        return made.shape
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected an array, got {type(array).__name__} ({error})"
        ) from None


def _tail(array: Any) -> tuple[int, ...]:
    return shape_of(array)[1:]


def allgather(
    array: Any, *, name: str | None = None, timeout: Timeout = None, group: Group | None = None
) -> np.ndarray:
    """Concatenates the arrays of all ranks along the first dimension, in rank order.

    Args:
      array: An array with at least one dimension. The first dimension may differ between ranks; the
        other dimensions and the dtype may not.

    Returns:
      A new array. A bfloat16 array comes as its bits in uint16, because NumPy has no bfloat16.
    """
    operation, flat = collect("allgather", array, CallOptions(name, timeout, group))
    return flat.reshape(sum(operation.counts), *_tail(array))


def reduce_scatter(
    array: Any,
    op: Operator = "average",
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> np.ndarray:
    """Reduces `array` over all ranks and leaves each rank one part of its first dimension.

    Args:
      array: An array with at least one dimension; equal shape and dtype on all ranks. Not changed.
      splits: The number of rows for each rank, in rank order; equal on all ranks. With None, N rows
        and P ranks, the first ``N % P`` ranks get one row more than the others.

    Returns:
      A new array with this rank's rows. A bfloat16 array comes as its bits in uint16.
    """
    call = CallOptions(name, timeout, group)
    return scattered(array, splits, call, op=op, prescale=prescale, postscale=postscale)


def scattered(
    array: Any, splits: Sequence[int] | None, call: CallOptions, **options: Any
) -> np.ndarray:
    """Does a `reduce_scatter`."""
    _, flat = collect("reduce_scatter", array, call, splits, **options)
    scope = scope_of(call.group)
    counts = even_parts(len(array), scope.size) if splits is None else splits
    return flat.reshape(counts[scope.rank], *_tail(array))


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> np.ndarray:
    """Sends a part of the first dimension to each rank and concatenates the parts received.

    Args:
      array: An array with at least one dimension. The first dimension may differ between ranks.
        Not changed.
      splits: The number of rows for each rank, in rank order; None means equal parts.

    Returns:
      A new array with the rows from rank 0, from rank 1 and so on. A bfloat16 array comes as its
      bits in uint16.

    Raises:
      InvalidArgumentError: `splits` does not fit, or another argument cannot be used on some rank.
    """
    return exchange(array, splits, CallOptions(name, timeout, group))


def exchange(
    array: Any, splits: Sequence[int] | None, call: CallOptions, agreement: str = ""
) -> np.ndarray:
    """Does an `alltoall`; ranks must also give the same text as `agreement`."""
    _, flat = collect("alltoall", array, call, splits, agreement)
    return flat.reshape(-1, *_tail(array))


def checked_splits(
    kind: str, rows: int, splits: Sequence[int] | None, group: Group | None
) -> list[int]:
    """Returns the number of rows for each rank; raises an error if `splits` does not fit `rows`."""
    ranks = scope_of(group).size
    if splits is None:
        if rows % ranks:
            raise InvalidArgumentError(
                f"{kind}: {counted(rows, 'row')} cannot be split evenly over {ranks} ranks; give "
                "splits"
            )
        return [rows // ranks] * ranks
    try:
        counts = [count_of(n, "a split") for n in splits]
    except (InvalidArgumentError, TypeError):
        raise InvalidArgumentError(
            f"{kind}: splits is {shown(splits)}; it must be {counted(ranks, 'integer')} with "
            f"the sum {rows}, or None"
        ) from None
    if len(counts) != ranks or sum(counts) != rows or min(counts) < 0:
        raise InvalidArgumentError(
            f"{kind}: splits is {counts}; it must be {counted(ranks, 'integer')} with the sum "
            f"{rows}"
        )
    return counts


def barrier(
    *, name: str | None = None, timeout: Timeout = None, group: Group | None = None
) -> None:
    """Returns when every rank has called it."""
    submit("barrier", None, CallOptions(name, timeout, group)).wait()


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> np.ndarray:
    """Returns a new array, with undefined content, in memory that this node's workers share.

    An all-reduce of such an array inside a node reads and writes it in place, without a copy.

    Args:
      shape: An integer or a tuple of integers.
      dtype: Anything that NumPy takes as a dtype.

    Returns:
      A NumPy array. Its memory lives as long as the array or any view of it.

    Raises:
      InvalidArgumentError: `shape` or `dtype` cannot be used.
      ShutdownError: This process is not in a job.
    """
    try:
        kind = np.dtype(dtype)
    except Exception:  # a strange value may raise anything
        raise InvalidArgumentError(f"dtype is {shown(dtype)}; it must be a NumPy dtype") from None
    if kind.hasobject or kind.itemsize == 0:
        raise InvalidArgumentError(f"dtype is {shown(dtype)}; it must be a dtype of a fixed size")
    given = [shape] if np.isscalar(shape) or not hasattr(shape, "__iter__") else shape
    sizes = tuple(count_of(n, "a dimension of shape") for n in given)
    count = count_of(math.prod(sizes) * kind.itemsize, f"the size in bytes of shape {sizes}")
    return _core.empty(job(), count).view(kind).reshape(sizes)
