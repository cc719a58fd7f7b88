"""Collectives on arrays: anything with the buffer protocol or DLPack, in host memory.

All-reduce and broadcast also take arrays on a GPU, one or a list of them, by DLPack; ranks may
differ in where theirs lie. Their results are there after `Handle.wait`, for what is queued then.

Operations are keyed by name; ranks may submit them in any order. The n-th call of a name on one
rank meets the n-th on every other, and without a name the n-th of a kind, in each `herring.Group`
by itself (``group=``; without one, all ranks take part). A call that one rank refuses, or for which
a rank comes too late, fails with the same error on every rank that makes it.
Arrays must be contiguous (C order); operations in place need a writable one, and leave it undefined
when they fail.
"""

from __future__ import annotations

import importlib.util
import math
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import (
    count_of,
    function_of,
    options_of,
    rank_of,
    seconds_of,
    shown,
)
from herring.arrays.calls import called, named
from herring.arrays.devices import take_back
from herring.arrays.groups import Group, scope_of
from herring.arrays.handles import DoneCallbacks, call_later
from herring.arrays.runtime import job
from herring.errors import (
    HerringError,
    InvalidArgumentError,
    MismatchError,
)
from herring.split import even_parts

__all__ = [
    "Handle",
    "allgather",
    "allgather_object",
    "allreduce_async",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "empty",
    "reduce_scatter",
]

_NUMPY = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": np.uint16,  # NumPy has none: its bits
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "bool": np.bool_,
}


class Handle:
    """An operation under way. Until it is complete its array is kept, also without the handle."""

    def __init__(self, operation: _core.Operation, array: Any) -> None:
        self._operation = operation
        self._array = array
        self._callbacks: DoneCallbacks | None = None

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._operation.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the result and returns the array.

        Args:
          timeout: seconds to wait here, or a text such as "5s"; the operation goes on after it.
            None: until its deadline.

        Raises:
          TimeoutError: not complete in time; names who is missing if the deadline has passed.
          HerringError: the operation failed; the array's content is undefined.
        """
        seconds = seconds_of(timeout)
        self._operation.wait(seconds)
        if self._operation.comes_back:
            take_back(self._operation, self._array, seconds)
        note_write(self._array)
        return self._array

    def exception(self, timeout: float | None = None) -> HerringError | None:
        """Waits, and returns why the operation has failed; None: it has not.

        Args:
          timeout: seconds to wait here, as of `wait`.

        Raises:
          TimeoutError: not complete in time.
        """
        try:
            self.wait(timeout)
        except HerringError:
            if not self.done():
                raise
        try:
            self.wait()
        except HerringError as error:
            return error
        return None

    def add_done_callback(self, fn: Callable[[Handle], object]) -> None:
        """Has `fn` called with this handle, once, when the operation is complete or has failed.

        If that is so already, and no earlier callback of this handle is still to be called, it is
        called at once, in this thread; else by a thread of its own that the job has for callbacks,
        in the order in which they were added. A callback may start other operations and wait for
        them; those of other handles are called after it has returned. It is called whether the
        handle is kept, dropped or waited for, and also when `herring.shutdown` ends the operation,
        which waits up to 10 s for callbacks. What it raises is logged.

        Args:
          fn: called with this handle: ``handle.wait()`` in it returns or raises at once.

        Raises:
          ShutdownError: the operation was started by the parent of this forked process.
        """
        function_of(fn, "fn")
        if self._callbacks is None:
            self._callbacks = DoneCallbacks()
        self._callbacks.add(fn, self, self._when_done)

    def _when_done(self, run: Callable[[], None]) -> bool:
        """Has `run` called when it is complete; False: it is already."""
        return call_later(self._operation, run)


def submit(
    kind: str,
    array: Any,
    name: str | None,
    timeout: float | None,
    group: Group | None = None,
    *,
    waits: bool = True,
    agreement: str = "",
    listed: bool = False,
    into: Any = None,
    anywhere: bool = False,
    check: Callable[[], dict[str, Any]] = dict,
    **options: Any,
) -> _core.Operation:
    """Starts a collective.

    Args:
      kind: which.
      array: of any dtype that it takes.
      name: of the operation; None: the next of its kind.
      timeout: seconds, as of `allgather`.
      group: those who take part; None: all ranks.
      waits: the caller waits for it at once; no other thread is woken to start it.
      agreement: what all ranks must give alike beside what the core sees, in words.
      listed: `array` is a list, of which all arrays have their results at once, or none.
      into: an array for the result, if it has as many bytes.
      anywhere: arrays of a list may lie on a GPU; `return_to` of the operation brings its results
        there. All-reduces and broadcasts take arrays of a GPU anyway.
      check: called before anything is started; returns more options.
      options: of the kind.

    Raises:
      InvalidArgumentError: a value is impossible; the other ranks are told.
    """
    with called(kind, name, group) as full_name:
        options |= check()
        operation = job().submit(
            kind,
            array,
            full_name,
            timeout=seconds_of(timeout),
            waits=waits,
            group=scope_of(group).handle,
            agreement=agreement,
            listed=listed,
            into=into,
            anywhere=anywhere,
            **options_of(kind, options, scope_of(group).size, group),
        )
    if kind in _IN_PLACE:
        note_write(array)
    return operation


_IN_PLACE = ("allreduce", "broadcast")


def note_write(array: Any) -> None:
    """Makes autograd complain if it still needs what a tensor, or one of a list, held before."""
    if isinstance(array, list):
        for one in array:
            note_write(one)
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def allreduce_async(
    array: Any,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> Handle:
    """Starts an all-reduce in place; see `herring.allreduce`."""
    operation = submit(
        "allreduce",
        array,
        name,
        timeout,
        group,
        waits=False,
        op=op,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
    )
    return Handle(operation, array)


def broadcast(
    array: Any,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> Any:
    """Copies `array` of rank `root` into `array` of every rank, in place.

    Args:
      array: any shape and dtype of `allreduce`; equal on all ranks. Writable, on the root too.
      root: a rank, inside the group if there is one.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      `array`.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    operation = submit("broadcast", array, name, timeout, group, root=root)
    return Handle(operation, array).wait()


def _collect(
    kind: str,
    array: Any,
    name: str | None,
    timeout: float | None,
    group: Group | None,
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
            return {"splits": checked_splits(kind, shape_of(array)[0], splits, group)}
        return {}

    operation = submit(
        kind, array, name, timeout, group, agreement=agreement, check=splits_of_kind, **options
    )
    operation.wait()
    return operation, operation.result().view(_NUMPY[_core.dtype_of(array)])


def shape_of(array: Any) -> tuple[int, ...]:
    """Returns the shape of an array, or of what NumPy makes one of."""
    try:
        return tuple(array.shape if hasattr(array, "shape") else np.shape(array))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected an array, got {type(array).__name__} ({error})"
        ) from None


def _tail(array: Any) -> tuple[int, ...]:
    return shape_of(array)[1:]


def allgather(
    array: Any,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> np.ndarray:
    """Concatenates the arrays of all ranks along the first dimension, in rank order.

    Args:
      array: at least one dimension, which may differ between ranks; the others may not.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array; bfloat16 comes as uint16 bits (NumPy has no bfloat16).

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    operation, flat = _collect("allgather", array, name, timeout, group)
    return flat.reshape(sum(operation.counts), *_tail(array))


def reduce_scatter(
    array: Any,
    op: str = "average",
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> np.ndarray:
    """Reduces `array` over all ranks and leaves each rank one part of its first dimension.

    Args:
      array: at least one dimension; equal shape and dtype on all ranks. Not changed.
      op: as `allreduce`.
      splits: rows for each rank, in rank order; equal on all ranks. None: with N rows and P ranks
        the first ``N % P`` ranks get one row more than the others.
      name: identifies the operation across ranks.
      prescale: as `allreduce`.
      postscale: as `allreduce`.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array with this rank's rows; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    _, flat = _collect(
        "reduce_scatter",
        array,
        name,
        timeout,
        group,
        splits,
        op=op,
        prescale=prescale,
        postscale=postscale,
    )
    scope = scope_of(group)
    counts = even_parts(len(array), scope.size) if splits is None else splits
    return flat.reshape(counts[scope.rank], *_tail(array))


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> np.ndarray:
    """Sends a part of the first dimension to each rank and concatenates what comes in.

    Args:
      array: at least one dimension, which may differ between ranks. Not changed.
      splits: rows for each rank, in rank order; None: equal parts.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array: the rows from rank 0, from rank 1, and so on; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError: `splits` does not fit; otherwise as `allreduce`.
      MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    return exchange(array, splits, name, timeout, group, "")


def exchange(
    array: Any,
    splits: Sequence[int] | None,
    name: str | None,
    timeout: float | None,
    group: Group | None,
    agreement: str,
) -> np.ndarray:
    """`alltoall`; `agreement`: what all ranks must give alike beside that, in words."""
    _, flat = _collect("alltoall", array, name, timeout, group, splits, agreement)
    return flat.reshape(-1, *_tail(array))


def checked_splits(
    kind: str, rows: int, splits: Sequence[int] | None, group: Group | None
) -> list[int]:
    """Returns rows for each rank: `splits`, or equal parts.

    Raises:
      InvalidArgumentError: they do not sum up to `rows`, or cannot be equal; names `kind`.
    """
    ranks = scope_of(group).size
    if splits is None:
        if rows % ranks:
            raise InvalidArgumentError(
                f"{kind}: {rows} rows cannot be split evenly over {ranks} ranks; give splits"
            )
        return [rows // ranks] * ranks
    try:
        counts = [count_of(n, "a split") for n in splits]
    except (InvalidArgumentError, TypeError):
        raise InvalidArgumentError(
            f"{kind}: splits is {shown(splits)}; it must be {ranks} integers that sum to {rows}, "
            "or None"
        ) from None
    if len(counts) != ranks or sum(counts) != rows or min(counts) < 0:
        raise InvalidArgumentError(
            f"{kind}: splits is {counts}; it must be {ranks} integers that sum to {rows}"
        )
    return counts


def barrier(
    *, name: str | None = None, timeout: float | None = None, group: Group | None = None
) -> None:
    """Returns when every rank has called it.

    Args:
      name: identifies the operation across ranks.
      timeout: seconds until it fails.
      group: those who take part; None: all ranks.

    Raises:
      PeerLostError, TimeoutError: as `allreduce`.
    """
    submit("barrier", None, name, timeout, group).wait()


def broadcast_object(
    obj: Any = None,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> Any:
    """Hands a picklable object of rank `root` to every rank.

    The bytes come from another rank of this job, which has proven the job's secret; they are
    unpickled, so trust between ranks is assumed.

    Args:
      obj: what to send; read on the root only. What pickle does not take, such as a lambda, goes
        by cloudpickle where it is installed.
      root: a rank, inside the group if there is one.
      name: identifies the operation across ranks.
      timeout: seconds until it fails.
      group: those who take part; None: all ranks.

    Returns:
      The object; on the root `obj` itself.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    name = named(name, "broadcast_object", group)
    with called("broadcast", f"{name}.length", group):
        sending = rank_of(root, scope_of(group).size, "broadcast_object", group) == (
            scope_of(group).rank
        )
        data = np.frombuffer(_pickled(obj) if sending else b"", np.uint8).copy()
    length = np.array([len(data)], np.int64)
    broadcast(length, root, name=f"{name}.length", timeout=timeout, group=group)
    if not sending:
        data = np.empty(int(length[0]), np.uint8)
    broadcast(data, root, name=f"{name}.bytes", timeout=timeout, group=group)
    return obj if sending else pickle.loads(data.tobytes())


def _pickled(obj: Any) -> bytes:
    try:
        return pickle.dumps(obj)
    except (pickle.PicklingError, AttributeError, TypeError):
        if importlib.util.find_spec("cloudpickle") is None:
            raise
    import cloudpickle

    return bytes(cloudpickle.dumps(obj))


def allgather_object(
    obj: Any,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[Any]:
    """Hands a picklable object of every rank to every rank.

    Args:
      obj: what to send.
      name: identifies the operation across ranks.
      timeout: seconds until it fails.
      group: those who take part; None: all ranks.

    Returns:
      The objects in rank order. See `broadcast_object` about trust.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    name = named(name, "allgather_object", group)
    with called("allgather", name, group):
        data = np.frombuffer(_pickled(obj), np.uint8).copy()
    operation, flat = _collect("allgather", data, name, timeout, group)
    objects, start = [], 0
    for length in operation.counts:
        objects.append(pickle.loads(flat[start : start + length].tobytes()))
        start += length
    return objects


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> np.ndarray:
    """A new array in memory that the workers of this node share, content undefined.

    An all-reduce of such an array inside a node reads and writes it in place, without a copy.

    Args:
      shape: an integer or a tuple.
      dtype: anything NumPy takes.

    Returns:
      A NumPy array; the memory lives as long as it, or any view of it.
    """
    try:
        kind = np.dtype(dtype)
    except Exception:  # whatever a strange value makes of it
        raise InvalidArgumentError(f"dtype is {shown(dtype)}; it must be one of NumPy's") from None
    if kind.hasobject or kind.itemsize == 0:
        raise InvalidArgumentError(f"dtype is {shown(dtype)}; it must be one of a fixed size")
    given = [shape] if np.isscalar(shape) or not hasattr(shape, "__iter__") else shape
    sizes = tuple(count_of(n, "a dimension of shape") for n in given)
    count = count_of(math.prod(sizes) * kind.itemsize, f"the size in bytes of shape {sizes}")
    return _core.empty(job(), count).view(kind).reshape(sizes)


def check_same(what: str, value: Any, *, name: str, group: Group | None = None) -> None:
    """Raises MismatchError on every rank unless `value` is equal on all of them."""
    values = allgather_object(value, name=name, group=group)
    if any(one != values[0] for one in values):
        ranks = range(len(values)) if group is None else group.ranks
        listed = "; ".join(f"rank {rank}: {one}" for rank, one in zip(ranks, values))
        raise MismatchError(f"ranks disagree about {what}: {listed}")
