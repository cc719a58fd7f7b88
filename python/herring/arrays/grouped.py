"""Grouped collectives: a list of arrays as one operation, done for all of them or for none.

Arrays of the list may have any mix of shapes and dtypes. The core copies them when the call is
made, and copies results back only when everything is complete: what that costs is as much memory
again as the arrays have, and one more copy on the way in and on the way out. In return there is one
announcement however many arrays there are, and none of them is touched by an operation that fails,
on any rank. But when a worker dies or leaves in the middle, ranks that had everything by then have
changed theirs.

Lists must agree on all ranks: the number of arrays, their order, shapes and dtypes. Ranks with
another list are named by `MismatchError` on every rank, before anything moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.calls import called, named
from herring.arrays.collectives import Handle, submit
from herring.arrays.groups import Group
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
    kind: str,
    arrays: Any,
    name: str | None,
    timeout: float | None,
    group: Group | None,
    *,
    waits: bool = True,
    **options: Any,
) -> tuple[_core.Operation, list[Any]]:
    """Starts the collective of this kind on a list; returns the list, too."""
    name = named(name, f"grouped_{kind}", group)
    with called(kind, name, group):
        if hasattr(arrays, "shape") or not isinstance(arrays, Iterable):
            what = "one array" if hasattr(arrays, "shape") else type(arrays).__name__
            raise InvalidArgumentError(f"grouped_{kind} takes a list of arrays, not {what}")
        arrays = list(arrays)
    operation = submit(kind, arrays, name, timeout, group, waits=waits, listed=True, **options)
    return operation, arrays


def results_of(operation: _core.Operation) -> list[np.ndarray]:
    """What a complete operation on a list has for each of its arrays, as new arrays; once."""
    found = []
    for dtype, shape, data in operation.results():
        kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)  # NumPy has no bfloat16
        found.append(data.view(kind).reshape(shape))
    return found


def grouped_allreduce(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[Any]:
    """Reduces each array of a list over all ranks, in place: all of them, or none.

    Args:
      arrays: a list of arrays as `herring.allreduce` takes them, of any mix of shapes and dtypes;
        equal on all ranks. It may be empty.
      op: as `allreduce`, for all of them: "average" takes floats only.
      name: identifies the operation across ranks.
      prescale: multiplies every rank's values first (floats only).
      postscale: multiplies the results (floats only).
      timeout: seconds until the operation fails, as of `allreduce`.
      group: those who take part; None: all ranks.

    Returns:
      The arrays, as a list.

    Raises:
      InvalidArgumentError: as `allreduce`; names the array of the list.
      MismatchError: ranks disagree; the message says which list each rank gave.
      PeerLostError, TimeoutError: as `allreduce`. Whatever is raised, the arrays are as they were.
    """
    scales = {"op": op, "prescale": prescale, "postscale": postscale}
    return Handle(*_start("allreduce", arrays, name, timeout, group, **scales)).wait()


def grouped_allreduce_async(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> Handle:
    """Starts a `grouped_allreduce`; the handle's `wait` returns the arrays, as a list.

    What the arrays hold now is what counts. The results are written to them at some time before
    `Handle.done` is true.
    """
    scales = {"op": op, "prescale": prescale, "postscale": postscale}
    return Handle(*_start("allreduce", arrays, name, timeout, group, waits=False, **scales))


def grouped_reduce_scatter(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Reduces each array of a list over all ranks and leaves each rank a part of every array.

    Args:
      arrays: a list of arrays with at least one dimension, of any mix of shapes and dtypes; equal
        on all ranks. Not changed. It may be empty.
      op: as `grouped_allreduce`.
      name: identifies the operation across ranks.
      prescale: as `grouped_allreduce`.
      postscale: as `grouped_allreduce`.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array for each of the list, with this rank's rows of it: with N rows and P ranks the
      first ``N % P`` ranks get one row more than the others. bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """
    scales = {"op": op, "prescale": prescale, "postscale": postscale}
    operation, _ = _start("reduce_scatter", arrays, name, timeout, group, **scales)
    operation.wait()
    return results_of(operation)


def grouped_allgather(
    arrays: Sequence[Any],
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Concatenates each array of a list over all ranks along its first dimension, in rank order.

    Args:
      arrays: a list of arrays with at least one dimension, which may differ between ranks; the
        other dimensions, the dtypes and the number of arrays may not. It may be empty.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array for each of the list; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """
    operation, _ = _start("allgather", arrays, name, timeout, group)
    operation.wait()
    return results_of(operation)


def grouped_broadcast(
    arrays: Sequence[Any],
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[Any]:
    """Copies each array of the root's list into that of every rank, in place: all, or none.

    Args:
      arrays: a list of arrays, of any mix of shapes and dtypes; equal on all ranks. Writable, on
        the root too. It may be empty.
      root: a rank, inside the group if there is one; equal on all ranks.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      The arrays, as a list.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """
    return Handle(*_start("broadcast", arrays, name, timeout, group, root=root)).wait()
