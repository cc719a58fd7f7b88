"""Grouped collectives: a list of arrays as one operation, done for all arrays or for none.

The arrays of a list may have any mix of shapes and dtypes. The core copies the arrays when the call
is made, and copies results back only when everything is complete. This takes as much memory again
as the arrays have, and one more copy in each direction. In return there is one announcement for any
number of arrays, and an operation that fails changes no array on any rank. There is one exception:
if a worker dies or leaves in the middle, ranks that already had everything have changed arrays.

Lists must agree on all ranks in the number of arrays, their order, shapes and dtypes. If a list
differs, every rank raises a `MismatchError` that names the ranks, before any data moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import Array, Operator, Timeout
from herring.arrays.calls import CallOptions
from herring.arrays.groups import Group
from herring.arrays.operations import Handle, submit
from herring.errors import InvalidArgumentError

__all__ = [
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_reduce_scatter",
    "results_of",
]


def _start(
    kind: str, arrays: Any, call: CallOptions, *, waits: bool = True, **options: Any
) -> tuple[_core.Operation, list[Any]]:
    """Starts a collective on a list; returns the operation and the list."""
    call = call.named(f"grouped_{kind}")
    with call.refusing(kind):
        if hasattr(arrays, "shape") or not isinstance(arrays, Iterable):
            what = "one array" if hasattr(arrays, "shape") else type(arrays).__name__
            raise InvalidArgumentError(f"grouped_{kind} takes a list of arrays, not {what}")
        arrays = list(arrays)
    operation = submit(kind, arrays, call, waits=waits, listed=True, **options)
    return operation, arrays


def results_of(operation: _core.Operation) -> list[np.ndarray]:
    """Returns a complete operation's result for each array of its list, as new arrays.

    The results can be taken only once.
    """
    found = []
    for dtype, shape, data in operation.results():
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)  # NumPy has no bfloat16
        found.append(data.view(kind).reshape(shape))
    return found


def grouped_allreduce(
    arrays: Sequence[Array],
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> list[Array]:
    """Reduces each array of a list over all ranks, in place: all arrays or none.

    Args:
      arrays: A list of arrays that `herring.allreduce` takes, of any mix of shapes and dtypes;
        equal on all ranks. The list may be empty.

    Returns:
      The arrays, as a list.

    Raises:
      TimeoutError: Not all ranks made the call in time; the message names the missing ranks.
        After any of these errors the arrays have their old content.
    """
    scales: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Handle(*_start("allreduce", arrays, CallOptions(name, timeout, group), **scales)).wait()


def grouped_allreduce_async(
    arrays: Sequence[Any],
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Handle:
    """Starts a `grouped_allreduce`; the handle's `wait` returns the arrays, as a list.

    The operation reduces the content that the arrays have at the call. Results are written to the
    arrays at some time before `Handle.done` is true.

    Returns:
      A handle of the operation.
    """
    scales: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    return Handle(
        *_start("allreduce", arrays, CallOptions(name, timeout, group), waits=False, **scales)
    )


def grouped_reduce_scatter(
    arrays: Sequence[Any],
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Reduces each array of a list over all ranks and leaves each rank a part of every array.

    Args:
      arrays: A list of arrays with at least one dimension, of any mix of shapes and dtypes; equal
        on all ranks. The arrays are not changed. The list may be empty.

    Returns:
      A new array for each array of the list, with this rank's rows of it. With N rows and P ranks
      the first ``N % P`` ranks get one row more than the others. A bfloat16 array comes as its bits
      in uint16.
    """
    scales: dict[str, Any] = {"op": op, "prescale": prescale, "postscale": postscale}
    operation, _ = _start("reduce_scatter", arrays, CallOptions(name, timeout, group), **scales)
    operation.wait()
    return results_of(operation)


def grouped_allgather(
    arrays: Sequence[Any],
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Concatenates each array of a list over all ranks along its first dimension, in rank order.

    Args:
      arrays: A list of arrays with at least one dimension. The first dimension may differ between
        ranks; the other dimensions, the dtypes and the number of arrays may not. The list may be
        empty.

    Returns:
      A new array for each array of the list. A bfloat16 array comes as its bits in uint16.
    """
    operation, _ = _start("allgather", arrays, CallOptions(name, timeout, group))
    operation.wait()
    return results_of(operation)


def grouped_broadcast(
    arrays: Sequence[Array],
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> list[Array]:
    """Copies each array of the root's list into that of every rank, in place: all or none.

    Args:
      arrays: A list of arrays, of any mix of shapes and dtypes; equal on all ranks. The arrays must
        be writable, on the root too. The list may be empty.
      root: The rank whose values are copied; with `group`, a rank inside it. Equal on all ranks.

    Returns:
      The arrays, as a list.

    Raises:
      TimeoutError: Not all ranks made the call in time; the message names the missing ranks.
        After any of these errors the arrays have their old content.
    """
    return Handle(*_start("broadcast", arrays, CallOptions(name, timeout, group), root=root)).wait()
