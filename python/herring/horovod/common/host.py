"""Starts collectives on NumPy arrays; each function returns the call, under way.

For frameworks whose tensors reach the host as arrays. What a call is given is copied at once, and
results are new arrays. Dtypes that operations do not reduce travel as others that hold them:
bfloat16 as float32, unsigned integers as int64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import herring
from herring.arrays.collectives import checked_splits
from herring.arrays.digests import digest
from herring.arrays.gradients import fresh
from herring.errors import InvalidArgumentError
from herring.horovod.common.adasum import adasum, require_power_of_two
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import (
    LIST_OPERATIONS,
    Adasum,
    Average,
    operator_of,
    scattering_operator,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, root_in

__all__ = [
    "Reduction",
    "Starter",
    "blocks",
]

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
_WIDER: dict[str, type] = {"bfloat16": np.float32, "uint16": np.int64, "uint32": np.int64}
_REDUCED = (*_FLOATS, *_INTEGERS, "uint16", "uint32", "bool")
_MOVED = ("float16", "float32", "float64", *_INTEGERS, "bool")


class Reduction(NamedTuple):
    """How values are combined.

    Attributes:
      op: Horovod's operator.
      prescale: multiplies each rank's values first.
      postscale: multiplies the result.
    """

    op: Any = Average
    prescale: float = 1.0
    postscale: float = 1.0

    @property
    def scaled(self) -> bool:
        """Whether there is something to multiply by."""
        return self.prescale != 1.0 or self.postscale != 1.0


def blocks(rows: int, ranks: int, rank: int) -> int:
    """Rows that a reduce-scatter of `rows` leaves to a rank."""
    return rows // ranks + (rank < rows % ranks)


def _text(array: np.ndarray) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _copied(array: np.ndarray, dtype: Any) -> np.ndarray:
    copy = fresh(array.shape, dtype)
    copy[...] = array
    return copy


def _reducible(array: np.ndarray, operation: str, how: Reduction, kind: str) -> np.ndarray:
    """A copy in a dtype that operations reduce: integers in float64 if they are not just added.

    These are multiplied by `how.prescale` already, each product cut towards zero.

    Raises:
      InvalidArgumentError: a dtype that cannot be reduced.
    """
    name = array.dtype.name
    if name not in _REDUCED:
        raise InvalidArgumentError(
            f"{kind}: tensors of {name} are not reduced; use one of {', '.join(_REDUCED)}"
        )
    if _wide(array, operation, how):
        host = _copied(array, np.float64)
        return np.trunc(host * how.prescale, out=host) if how.prescale != 1.0 else host
    return _copied(array, _WIDER.get(name, array.dtype))


def _wide(array: np.ndarray, operation: str, how: Reduction) -> bool:
    return array.dtype.name not in _FLOATS and (operation == "average" or how.scaled)


def _all_reducible(
    arrays: Sequence[np.ndarray], operation: str, how: Reduction, kind: str
) -> tuple[list[np.ndarray], float]:
    """As `_reducible`, of a list, and what is left to multiply all of them by.

    Integers are multiplied here, so floats beside them are, too.
    """
    hosts = [_reducible(one, operation, how, kind) for one in arrays]
    wide = [_wide(one, operation, how) for one in arrays]
    if how.prescale == 1.0 or not any(wide):
        return hosts, how.prescale
    for host, scaled in zip(hosts, wide):
        if not scaled:
            np.multiply(host, how.prescale, out=host, casting="same_kind")
    return hosts, 1.0


def _narrow(found: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """In the dtype that the caller has; floats become integers towards zero."""
    if found.dtype == dtype:
        return found
    if found.dtype.kind == "f" and dtype.kind in "iu":
        return found.astype(np.int64).astype(dtype)
    return found.astype(dtype)


def _movable(array: np.ndarray, kind: str) -> np.ndarray:
    """A copy as [rows, elements of a row], or bytes of it; a scalar is one row.

    Raises:
      InvalidArgumentError: elements without a size, such as strings.
    """
    if array.dtype.hasobject:
        raise InvalidArgumentError(f"{kind}: strings and objects are sent by broadcast_object()")
    shape = array.shape or (1,)
    rows = _copied(array, array.dtype).reshape(shape[0], math.prod(shape[1:]))
    return rows if array.dtype.name in _MOVED else rows.view(np.uint8)


def _rows_of(array: np.ndarray) -> tuple[str, tuple[int, ...]]:
    """What ranks agree about where the numbers of rows may differ, and the shape of a row."""
    tail = array.shape[1:]
    return f"{array.dtype.name} {['n', *tail]}", tail


def _received(operation: Any, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    found: np.ndarray = operation.result().view(dtype).reshape(shape)
    return found


class Starter:
    """Starts calls of one name in one process set.

    Args:
      name: of the operation; None: calls are numbered.
      process_set: who takes part.
      queues: as of `Call`.
    """

    def __init__(
        self,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        *,
        queues: bool = False,
    ) -> None:
        self.name = name
        self.process_set = process_set
        self._queues = queues

    def _call(self, kind: str) -> Call:
        return Call(kind, self.name, self.process_set, queues=self._queues)

    def allreduce(self, array: np.ndarray, how: Reduction) -> Call:
        """Starts an all-reduce; its result is an array."""
        with self._call("allreduce") as call:
            call.will_start("allgather" if how.op == Adasum else "allreduce")
            operation = operator_of(how.op, "allreduce")
            if operation == "adasum":
                _start_adasum(call, [array], how)
                only = call.finish
                call.finish = lambda: only()[0]
                return call
            host = _reducible(array, operation, how, "allreduce")
            text, dtype = _text(array), array.dtype
            other = host.dtype != dtype
            call.about = (text,) if other else ()
            call.start(
                host,
                op=operation,
                prescale=1.0 if _wide(array, operation, how) else how.prescale,
                postscale=how.postscale,
                list=digest(text) if other else 0,
            )
            call.finish = lambda: _narrow(host, dtype)
        return call

    def grouped_allreduce(self, arrays: Sequence[np.ndarray], how: Reduction) -> Call:
        """Starts an all-reduce of a list: all of it or none; its result is a list."""
        kind = "grouped_allreduce"
        with self._call(kind) as call:
            adds = how.op == Adasum
            call.will_start(*(("allgather", 1) if adds else ("allreduce", LIST_OPERATIONS)))
            operation = operator_of(how.op, kind)
            if adds:
                _start_adasum(call, arrays, how)
                return call
            hosts, prescale = _all_reducible(arrays, operation, how, kind)
            dtypes = [one.dtype for one in arrays]
            call.leave_to(
                lambda: herring.grouped_allreduce_async(
                    hosts,
                    operation,
                    name=call.name,
                    prescale=prescale,
                    postscale=how.postscale,
                    group=call.group,
                )
            )
            call.finish = lambda: [_narrow(host, dtype) for host, dtype in zip(hosts, dtypes)]
        return call

    def allgather(self, array: np.ndarray) -> Call:
        """Starts an all-gather; its result is an array."""
        with self._call("allgather") as call:
            call.will_start("allgather")
            rows = _movable(array, "allgather")
            text, tail = _rows_of(array)
            dtype = array.dtype
            call.about = (text,)
            operation = call.start(rows, list=digest(text))
            call.finish = lambda: _received(operation, dtype, (sum(operation.counts), *tail))
        return call

    def grouped_allgather(self, arrays: Sequence[np.ndarray]) -> Call:
        """Starts an all-gather of a list: all of it or none; its result is a list."""
        kind = "grouped_allgather"
        with self._call(kind) as call:
            call.will_start("allgather")
            rows = [_movable(one, kind) for one in arrays]
            about = [(one.dtype, one.shape[1:]) for one in arrays]

            def run() -> list[np.ndarray]:
                found = herring.grouped_allgather(rows, name=call.name, group=call.group)
                return [
                    np.ascontiguousarray(part).reshape(-1).view(dtype).reshape(len(part), *tail)
                    for part, (dtype, tail) in zip(found, about)
                ]

            call.in_thread(run)
        return call

    def broadcast(self, array: np.ndarray, root_rank: int) -> Call:
        """Starts a broadcast from a rank of the job; its result is an array."""
        with self._call("broadcast") as call:
            call.will_start("broadcast")
            root = root_in(self.process_set, operator.index(root_rank))
            host = _movable(array, "broadcast").reshape(-1)
            dtype, shape = array.dtype, array.shape
            call.start(host, root=root)
            call.finish = lambda: host.view(dtype).reshape(shape)
        return call

    def grouped_broadcast(self, arrays: Sequence[np.ndarray], root_rank: int) -> Call:
        """Starts a broadcast of a list: all of it or none; its result is a list."""
        kind = "grouped_broadcast"
        with self._call(kind) as call:
            call.will_start("allgather")
            root = root_in(self.process_set, operator.index(root_rank))
            hosts = [_movable(one, kind) for one in arrays]
            about = [(one.dtype, one.shape) for one in arrays]

            def run() -> list[np.ndarray]:
                herring.grouped_broadcast(hosts, root, name=call.name, group=call.group)
                return [
                    host.reshape(-1).view(dtype).reshape(shape)
                    for host, (dtype, shape) in zip(hosts, about)
                ]

            call.in_thread(run)
        return call

    def alltoall(self, array: np.ndarray, splits: Any) -> Call:
        """Starts an all-to-all; its result is an array, and rows from each rank (int32)."""
        with self._call("alltoall") as call:
            call.will_start("alltoall")
            rows = _movable(array, "alltoall")
            given = splits.tolist() if isinstance(splits, np.ndarray) else splits
            counts = checked_splits("alltoall", len(rows), given, call.group)
            text, tail = _rows_of(array)
            dtype = array.dtype
            call.about = (text,)
            items = rows.shape[1]
            # Rows without elements: their numbers go alone.
            sent = rows if items else np.array(counts, np.int64)
            parts = counts if items else [1] * call.scope.size
            operation = call.start(sent, splits=parts, list=digest(text))

            def finish() -> tuple[np.ndarray, np.ndarray]:
                if not items:
                    came = operation.result().view(np.int64).astype(np.int32)
                    return np.empty((int(came.sum()), *tail), dtype), came
                came = np.array([n // items for n in operation.counts], np.int32)
                return _received(operation, dtype, (int(came.sum()), *tail)), came

            call.finish = finish
        return call

    def reducescatter(self, array: np.ndarray, how: Reduction) -> Call:
        """Starts a reduce-scatter; its result is an array."""
        kind = "reducescatter"
        with self._call(kind) as call:
            call.will_start("reduce_scatter")
            by = scattering_operator(how.op, kind)
            host = _reducible(_with_rows(array, kind), by, how, kind)
            prescale = 1.0 if _wide(array, by, how) else how.prescale
            text, dtype = _text(array), array.dtype
            call.about = (text,)
            operation = call.start(
                host, op=by, list=digest(text), prescale=prescale, postscale=how.postscale
            )
            mine = blocks(len(array), call.scope.size, call.scope.rank)
            shape = (mine, *array.shape[1:])
            call.finish = lambda: _narrow(_received(operation, host.dtype, shape), dtype)
        return call

    def grouped_reducescatter(self, arrays: Sequence[np.ndarray], how: Reduction) -> Call:
        """Starts a reduce-scatter of a list: all of it or none; its result is a list."""
        kind = "grouped_reducescatter"
        with self._call(kind) as call:
            call.will_start("reduce_scatter", LIST_OPERATIONS)
            by = scattering_operator(how.op, kind)
            listed = [_with_rows(one, kind) for one in arrays]
            hosts, prescale = _all_reducible(listed, by, how, kind)
            dtypes = [one.dtype for one in arrays]

            def run() -> list[np.ndarray]:
                found = herring.grouped_reduce_scatter(
                    hosts,
                    by,
                    name=call.name,
                    prescale=prescale,
                    postscale=how.postscale,
                    group=call.group,
                )
                return [_narrow(part, dtype) for part, dtype in zip(found, dtypes)]

            call.in_thread(run)
        return call


def _with_rows(array: np.ndarray, kind: str) -> np.ndarray:
    if array.ndim == 0:
        raise InvalidArgumentError(f"{kind} needs tensors with at least one dimension")
    return array


def _start_adasum(call: Call, arrays: Sequence[np.ndarray], how: Reduction) -> None:
    """Gathers the vectors of all ranks, which each of them combines."""
    require_power_of_two(call.scope.size)
    call.about = [_text(one) for one in arrays]
    flats = []
    for one in arrays:
        name = one.dtype.name
        if name not in _FLOATS:
            raise InvalidArgumentError(f"Adasum is for floats, not {name}")
        flat = np.ascontiguousarray(one).reshape(-1)
        wide = np.float64 if name == "float64" else np.float32
        flats.append(np.multiply(flat, how.prescale, dtype=wide))
    about = [(one.dtype, one.shape) for one in arrays]
    whole = np.concatenate([flat.view(np.uint8) for flat in flats] or [np.empty(0, np.uint8)])
    operation = call.start(whole.reshape(1, -1), list=digest("; ".join(call.about)))

    def finish() -> list[np.ndarray]:
        everyone = operation.result().reshape(call.scope.size, len(whole))
        results, at = [], 0
        for flat, (dtype, shape) in zip(flats, about):
            rows = [row[at : at + flat.nbytes].copy().view(flat.dtype) for row in everyone]
            at += flat.nbytes
            found = np.multiply(adasum(rows), how.postscale, dtype=flat.dtype)
            results.append(found.astype(dtype).reshape(shape))
        return results

    call.finish = finish
