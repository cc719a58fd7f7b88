"""Lists of arrays that are reduced: one operation per dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import number_of, operator_of
from herring.arrays.collectives import Handle, empty, named, note_write
from herring.arrays.grouped.call import Call, GroupedHandle
from herring.arrays.grouped.listed import FLOATS, Listed, Part, numpy_dtype, typed
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError
from herring.split import even_parts


def _check_scales(kind: str, listed: Listed, op: str, prescale: float, postscale: float) -> None:
    """Finds before anything is started what an operation of one of the dtypes would refuse."""
    op = operator_of(op)
    prescale, postscale = number_of(prescale, "prescale"), number_of(postscale, "postscale")
    if op != "average" and prescale == postscale == 1.0:
        return
    for index, one in enumerate(listed.about):
        if one.dtype not in FLOATS:
            raise InvalidArgumentError(
                f"{kind}, array {index} of the list: averages and scales are for floats, not "
                f"{one.dtype}"
            )


def _start_allreduce(
    arrays: Sequence[Any],
    op: str,
    name: str | None,
    prescale: float,
    postscale: float,
    timeout: float | None,
    group: Group | None,
    *,
    waits: bool,
) -> GroupedHandle:
    kind = "grouped_allreduce"
    call = Call("allreduce", named(name, kind, group), group)
    parts: list[Part] = []
    try:
        listed = Listed(kind, arrays, writable=True, rows=False)
        _check_scales(kind, listed, op, prescale, postscale)
        stagings = []
        for dtype, places in listed.dtypes().items():
            size, first = numpy_dtype(dtype).itemsize, 0
            staging = empty(sum(listed.about[i].bytes for i in places) // size, numpy_dtype(dtype))
            raw = staging.view(np.uint8)
            for i in places:
                parts.append((raw, first, listed.arrays[i], 0, listed.about[i].bytes))
                first += listed.about[i].bytes
            stagings.append(typed(staging, dtype))
        _core.copy_parts(parts)
        for staging in stagings:
            call.start(
                staging,
                timeout,
                waits=waits,
                op=op,
                prescale=prescale,
                postscale=postscale,
                list=listed.number,
            )
    except Exception as error:
        call.refuse(error)
        raise

    def finish() -> list[Any]:
        _core.copy_parts(parts, back=True)
        for array in listed.arrays:
            note_write(array)
        return listed.arrays

    return GroupedHandle(call, listed, finish)


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
      MismatchError: ranks disagree; the message says which have the same list as which.
      PeerLostError, TimeoutError: as `allreduce`. Whatever is raised, the arrays are as they were.
    """
    return _start_allreduce(
        arrays, op, name, prescale, postscale, timeout, group, waits=True
    ).wait()


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
    `Handle.done` is true, by the thread for callbacks or a thread that waits.
    """
    handle = _start_allreduce(arrays, op, name, prescale, postscale, timeout, group, waits=False)
    handle.watch()
    return handle


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
    kind = "grouped_reduce_scatter"
    call = Call("reduce_scatter", named(name, kind, group), group)
    size, rank = call.scope.size, call.scope.rank

    try:
        listed = Listed(kind, arrays, writable=False, rows=True)
        _check_scales(kind, listed, op, prescale, postscale)
        counts = [even_parts(one.shape[0], size) for one in listed.about]
        begun = [0] * len(counts)
        parts: list[Part] = []
        started = []
        for dtype, places in listed.dtypes().items():
            item, at = numpy_dtype(dtype).itemsize, 0
            staging = empty(sum(listed.about[i].bytes for i in places) // item, numpy_dtype(dtype))
            raw, splits = staging.view(np.uint8), []
            for to in range(size):  # the parts of one rank lie together
                begin = at
                for i in places:
                    length = counts[i][to] * listed.about[i].row_bytes
                    parts.append((raw, at, listed.arrays[i], begun[i], length))
                    at += length
                    begun[i] += length
                splits.append((at - begin) // item)
            started.append((typed(staging, dtype), splits))
        _core.copy_parts(parts)
        for staging, splits in started:
            call.start(
                staging,
                timeout,
                op=op,
                prescale=prescale,
                postscale=postscale,
                splits=splits,
                list=listed.number,
            )
    except Exception as error:
        call.refuse(error)
        raise

    def finish() -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for operation, (dtype, places) in zip(call.operations, listed.dtypes().items()):
            flat, at = operation.result().view(numpy_dtype(dtype)), 0
            for i in places:
                shape = (counts[i][rank], *listed.about[i].shape[1:])
                count = int(np.prod(shape, dtype=np.int64))
                found[i] = flat[at : at + count].reshape(shape)
                at += count
        return [found[i] for i in range(len(listed.arrays))]

    return GroupedHandle(call, listed, finish).wait()
