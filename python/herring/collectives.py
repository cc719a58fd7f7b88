"""Collectives on arrays: anything with the buffer protocol or DLPack, in host memory.

Operations are keyed by name; ranks may submit them in any order. The n-th call of a name on one
rank meets the n-th on every other, and without a name the n-th of a kind. A call that one rank
refuses, or for which a rank comes too late, fails with the same error on every rank that makes it.
Arrays must be contiguous (C order); operations in place need a writable one, and leave it undefined
when they fail.
"""

from __future__ import annotations

import operator
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from herring import _core
from herring.errors import InvalidArgumentError, MismatchError, PeerLostError, ShutdownError
from herring.runtime import job, next_name, size

if TYPE_CHECKING:
    from herring.partial import Quorum, Replay

__all__ = [
    "Handle",
    "allgather",
    "allgather_object",
    "allreduce",
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

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._operation.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Waits for the result and returns the array.

        Args:
          timeout: seconds to wait here; the operation goes on after it. None: until its deadline.

        Raises:
          TimeoutError: not complete in time; names who is missing if the deadline has passed.
          HerringError: the operation failed; the array's content is undefined.
        """
        self._operation.wait(_seconds(timeout))
        _note_write(self._array)
        return self._array


@contextmanager
def called(kind: str, name: str | None) -> Iterator[str]:
    """Yields the name of this call; what this rank refuses in the block, all ranks are told.

    Args:
      kind: the collective that the others wait in, should this rank refuse.
      name: of the operation; None: the next of its kind.
    """
    name = name or next_name(kind)
    try:
        yield name
    except (PeerLostError, ShutdownError):
        raise  # nobody is left to tell
    except Exception as error:
        known = isinstance(error, InvalidArgumentError)
        job().refuse(kind, name, str(error) if known else f"{type(error).__name__}: {error}")
        raise


def _seconds(timeout: float | None) -> float:
    if timeout is None:
        return 0.0
    if not timeout > 0:
        raise InvalidArgumentError(f"timeout is {timeout}; it must be more than 0 seconds, or None")
    return float(timeout)


def _submit(
    kind: str,
    array: Any,
    name: str | None,
    timeout: float | None,
    *,
    waits: bool = True,
    **options: Any,
) -> _core.Operation:
    """`waits`: the caller waits for it at once; no other thread is woken to start it."""
    with called(kind, name) as full_name:
        operation = job().submit(
            kind, array, full_name, timeout=_seconds(timeout), waits=waits, **options
        )
    if kind in _IN_PLACE:
        _note_write(array)
    return operation


_IN_PLACE = ("allreduce", "broadcast")


def _note_write(array: Any) -> None:
    """Makes autograd complain if it still needs what a tensor held before."""
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
) -> Handle:
    """Starts an all-reduce in place; see `allreduce`."""
    operation = _submit(
        "allreduce",
        array,
        name,
        timeout,
        waits=False,
        op=op,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
    )
    return Handle(operation, array)


def allreduce(
    array: Any,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    algorithm: str = "herring",
    sync: str | Quorum | Replay | None = None,
) -> Any:
    """Reduces `array` over all ranks, element by element and in place.

    Sums are taken in float32 for 16-bit floats, else in the array's own dtype, in one fixed tree:
    the same inputs give the same bits.

    Args:
      array: any shape; float32, float64, float16, bfloat16 (DLPack), int8, int16, int32, int64,
        uint8 or bool. Equal shape and dtype on all ranks.
      op: "average" (floats only), "sum", "min", "max" or "product".
      name: identifies the operation across ranks.
      prescale: multiplies every rank's values first (floats only).
      postscale: multiplies the result (floats only).
      timeout: seconds until the operation fails because ranks do not call it, and until the job
        fails because, after all have, nothing moves (at least 2 s); None: ``HERRING_TIMEOUT``.
      algorithm: "herring" goes through the servers. "server" (rank 0 is the only one), "tree"
        (binomial), "ring" and "butterfly" (recursive halving and doubling) go by messages between
        the workers, over TCP also inside a node; see docs/algorithms.md for when to use which. They
        give the same bits on all ranks and every time, but each algorithm and number of ranks its
        own; 16-bit floats are rounded to their own dtype after each addition, and may overflow
        there. Equal on all ranks.
      sync: "solo", "majority", a `herring.Quorum` or a `herring.Replay`: a partial all-reduce,
        which does not wait for everybody ("average" and "sum" only). All calls of one `name`
        ("allreduce" if none is given) are a series: the n-th call returns the result of round n,
        which is the same on all ranks; what comes too late for its round is in the next one.
        `herring.flush` ends the series. The first call waits for all ranks. "full": an ordinary
        all-reduce, once ranks have agreed that it is. See docs/partial.md.

    Returns:
      `array`.

    Raises:
      InvalidArgumentError: dtype, op or algorithm not supported, not contiguous, read-only, not in
        host memory, or an operation of this name is in flight.
      MismatchError: ranks disagree; the message lists which rank had what.
      PeerLostError: a worker or server died or left.
      TimeoutError: the deadline passed; the message names the missing ranks.
    """
    if sync is not None:
        from herring.partial import allreduce_in_rounds

        if (prescale, postscale, algorithm) != (1.0, 1.0, "herring") and sync != "full":
            raise InvalidArgumentError(
                f"allreduce(sync={sync!r}) takes no prescale, postscale or algorithm"
            )
        if allreduce_in_rounds(array, op, sync, name, timeout):
            _note_write(array)
            return array
    operation = _submit(
        "allreduce",
        array,
        name,
        timeout,
        op=op,
        prescale=prescale,
        postscale=postscale,
        algorithm=algorithm,
    )
    return Handle(operation, array).wait()


def broadcast(
    array: Any, root: int = 0, *, name: str | None = None, timeout: float | None = None
) -> Any:
    """Copies `array` of rank `root` into `array` of every rank, in place.

    Args:
      array: any shape and dtype of `allreduce`; equal on all ranks. Writable, on the root too.
      root: a rank.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.

    Returns:
      `array`.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    operation = _submit("broadcast", array, name, timeout, root=root)
    return Handle(operation, array).wait()


def _collect(
    kind: str,
    array: Any,
    name: str | None,
    timeout: float | None,
    splits: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Any, np.ndarray]:
    with called(kind, name) as full_name:
        if len(_shape(array)) == 0:
            raise InvalidArgumentError(f"{kind} needs an array with at least one dimension")
        if kind == "alltoall":
            options["splits"] = _checked_splits(len(array), splits)
        operation = job().submit(
            kind, array, full_name, timeout=_seconds(timeout), waits=True, **options
        )
    operation.wait()
    return operation, operation.result().view(_NUMPY[_core.dtype_of(array)])


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(array.shape if hasattr(array, "shape") else np.shape(array))


def _tail(array: Any) -> tuple[int, ...]:
    return _shape(array)[1:]


def allgather(array: Any, *, name: str | None = None, timeout: float | None = None) -> np.ndarray:
    """Concatenates the arrays of all ranks along the first dimension, in rank order.

    Args:
      array: at least one dimension, which may differ between ranks; the others may not.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.

    Returns:
      A new array; bfloat16 comes as uint16 bits (NumPy has no bfloat16).

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    operation, flat = _collect("allgather", array, name, timeout)
    return flat.reshape(sum(operation.dims), *_tail(array))


def reduce_scatter(
    array: Any,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
) -> np.ndarray:
    """Reduces `array` over all ranks and leaves each rank one part of its first dimension.

    With N rows and P ranks, the first ``N % P`` ranks get one row more than the others.

    Args:
      array: at least one dimension; equal shape and dtype on all ranks. Not changed.
      op: as `allreduce`.
      name: identifies the operation across ranks.
      prescale: as `allreduce`.
      postscale: as `allreduce`.
      timeout: seconds until the operation fails.

    Returns:
      A new array with this rank's rows; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    _, flat = _collect(
        "reduce_scatter", array, name, timeout, op=op, prescale=prescale, postscale=postscale
    )
    rows, rank = len(array), job().rank
    mine = rows // size() + (rank < rows % size())
    return flat.reshape(mine, *_tail(array))


def alltoall(
    array: Any,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
) -> np.ndarray:
    """Sends a part of the first dimension to each rank and concatenates what comes in.

    Args:
      array: at least one dimension, which may differ between ranks. Not changed.
      splits: rows for each rank, in rank order; None: equal parts.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.

    Returns:
      A new array: the rows from rank 0, from rank 1, and so on; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError: `splits` does not fit; otherwise as `allreduce`.
      MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    _, flat = _collect("alltoall", array, name, timeout, splits)
    return flat.reshape(-1, *_tail(array))


def _checked_splits(rows: int, splits: Sequence[int] | None) -> list[int]:
    ranks = size()
    if splits is None:
        if rows % ranks:
            raise InvalidArgumentError(
                f"alltoall: {rows} rows cannot be split evenly over {ranks} ranks; give splits"
            )
        return [rows // ranks] * ranks
    try:
        counts = [operator.index(n) for n in splits]
    except TypeError as error:
        raise InvalidArgumentError(
            f"alltoall: splits is {splits}; it must be integers ({error})"
        ) from None
    if len(counts) != ranks or sum(counts) != rows or min(counts) < 0:
        raise InvalidArgumentError(
            f"alltoall: splits is {counts}; it must be {ranks} counts that sum to {rows}"
        )
    return counts


def barrier(*, name: str | None = None, timeout: float | None = None) -> None:
    """Returns when every rank has called it.

    Args:
      name: identifies the operation across ranks.
      timeout: seconds until it fails.

    Raises:
      PeerLostError, TimeoutError: as `allreduce`.
    """
    _submit("barrier", None, name, timeout).wait()


def broadcast_object(
    obj: Any = None, root: int = 0, *, name: str | None = None, timeout: float | None = None
) -> Any:
    """Hands a picklable object of rank `root` to every rank.

    The bytes come from another rank of this job, which has proven the job's secret; they are
    unpickled, so trust between ranks is assumed.

    Args:
      obj: what to send; read on the root only.
      root: a rank.
      name: identifies the operation across ranks.
      timeout: seconds until it fails.

    Returns:
      The object; on the root `obj` itself.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    name = name or next_name("broadcast_object")
    sending = job().rank == root
    with called("broadcast", f"{name}.length"):
        data = np.frombuffer(pickle.dumps(obj) if sending else b"", np.uint8).copy()
    length = np.array([len(data)], np.int64)
    broadcast(length, root, name=f"{name}.length", timeout=timeout)
    if not sending:
        data = np.empty(int(length[0]), np.uint8)
    broadcast(data, root, name=f"{name}.bytes", timeout=timeout)
    return obj if sending else pickle.loads(data.tobytes())


def allgather_object(
    obj: Any, *, name: str | None = None, timeout: float | None = None
) -> list[Any]:
    """Hands a picklable object of every rank to every rank.

    Args:
      obj: what to send.
      name: identifies the operation across ranks.
      timeout: seconds until it fails.

    Returns:
      The objects in rank order. See `broadcast_object` about trust.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `allreduce`.
    """
    name = name or next_name("allgather_object")
    with called("allgather", name):
        data = np.frombuffer(pickle.dumps(obj), np.uint8).copy()
    operation, flat = _collect("allgather", data, name, timeout)
    objects, start = [], 0
    for length in operation.dims:
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
    kind = np.dtype(dtype)
    shape = (int(shape),) if np.isscalar(shape) else tuple(int(n) for n in shape)
    if any(n < 0 for n in shape):
        raise InvalidArgumentError(f"shape is {shape}; no dimension may be negative")
    count = int(np.prod(shape, dtype=np.int64))
    return _core.empty(job(), count * kind.itemsize).view(kind).reshape(shape)


def check_same(what: str, value: Any, *, name: str) -> None:
    """Raises MismatchError on every rank unless `value` is equal on all of them."""
    values = allgather_object(value, name=name)
    if any(one != values[0] for one in values):
        listed = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(values))
        raise MismatchError(f"ranks disagree about {what}: {listed}")
