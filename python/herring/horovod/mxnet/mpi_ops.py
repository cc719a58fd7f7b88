"""The collectives of Horovod's API on MXNet's arrays.

Names ending with ``_`` write into the arrays given, others return new ones, of the same kind
(mx.nd.NDArray or mx.np.ndarray) and context. They return when it is done, so `priority` has no
meaning; autograd does not see them. Operations match across ranks by `name`, or without one by the
number of the call of their kind. All take `process_set`, whose ranks alone call them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np

import herring
from herring.errors import InvalidArgumentError
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.host import Reduction, Starter
from herring.horovod.common.operators import (
    Average,
    operator_or_average,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of

__all__ = [
    *__all__,
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def _host(tensor: Any, kind: str) -> np.ndarray:
    """A copy of its values; MXNet waits for what is still to be written to it.

    Raises:
      InvalidArgumentError: not an array of MXNet, or sparse.
    """
    if not isinstance(tensor, mx.nd.NDArray):
        raise InvalidArgumentError(
            f"{kind}: expected an mx.nd.NDArray, got {type(tensor).__name__}"
        )
    if tensor.stype != "default":
        raise InvalidArgumentError(
            f"{kind}: the array is {tensor.stype}; use tensor.tostype('default')"
        )
    array: np.ndarray = tensor.asnumpy()
    return array


def _hosts(tensors: Any, kind: str) -> list[np.ndarray]:
    if not isinstance(tensors, (list, tuple)):
        raise InvalidArgumentError(f"{kind} takes a list of arrays, got {type(tensors).__name__}")
    return [_host(tensor, kind) for tensor in tensors]


def _like(found: np.ndarray, tensor: Any) -> Any:
    """A new array with these values, of the kind and context of the one given."""
    make = mx.np.array if isinstance(tensor, mx.np.ndarray) else mx.nd.array
    return make(found, ctx=tensor.context, dtype=found.dtype)


def _write(found: np.ndarray, tensor: Any) -> Any:
    _like(found, tensor).copyto(tensor)
    return tensor


def _reduction(
    average: bool | None, op: int | None, prescale_factor: float, postscale_factor: float
) -> Reduction:
    return Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)


def allreduce(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduces an array over all ranks.

    Averages and scaled sums of integers are computed in float64 and cut towards zero.

    Args:
      tensor: any shape; float16, float32, float64, int8, int32, int64, uint8 or bool; alike on all
        ranks.
      average: older than `op`: True is Average, False is Sum.
      name: identifies the operation across ranks.
      priority: no meaning.
      prescale_factor: multiplies each rank's values first.
      postscale_factor: multiplies the result.
      process_set: who takes part.
      op: Average (None), Sum, Adasum (floats, and a power of two of ranks), Min, Max or Product.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError: no such operator, dtype or layout; a process set that is not
        registered, or without this rank.
      HorovodInternalError: ranks disagree (MismatchError), one is gone (PeerLostError) or missing
        (TimeoutError).
    """
    how = _reduction(average, op, prescale_factor, postscale_factor)
    starter = Starter(name, process_set)
    return _like(starter.allreduce(_host(tensor, "allreduce"), how).result(), tensor)


def allreduce_(
    tensor: Any,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Any:
    """Reduces an array over all ranks in place, and returns it; otherwise as `allreduce`."""
    how = _reduction(average, op, prescale_factor, postscale_factor)
    starter = Starter(name, process_set)
    return _write(starter.allreduce(_host(tensor, "allreduce"), how).result(), tensor)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduces a list of arrays, of any shapes and dtypes, as one operation: all of it or none.

    Args and errors as in `allreduce`.

    Returns:
      New arrays, as a list.
    """
    how = _reduction(average, op, prescale_factor, postscale_factor)
    arrays = _hosts(tensors, "grouped_allreduce")
    found = Starter(name, process_set).grouped_allreduce(arrays, how).result()
    return [_like(one, tensor) for one, tensor in zip(found, tensors)]


def grouped_allreduce_(
    tensors: Sequence[Any],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[Any]:
    """Reduces a list of arrays in place and returns it; otherwise as `grouped_allreduce`."""
    how = _reduction(average, op, prescale_factor, postscale_factor)
    arrays = _hosts(tensors, "grouped_allreduce")
    found = Starter(name, process_set).grouped_allreduce(arrays, how).result()
    return [_write(one, tensor) for one, tensor in zip(found, tensors)]


def allgather(
    tensor: Any,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenates the arrays of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      name: as in `allreduce`.
      priority: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new array [sum of n, ...].

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    found = Starter(name, process_set).allgather(_host(tensor, "allgather")).result()
    return _like(found, tensor)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates each array of a list over all ranks, as one operation; as `allgather`."""
    arrays = _hosts(tensors, "grouped_allgather")
    found = Starter(name, process_set).grouped_allgather(arrays).result()
    return [_like(one, tensor) for one, tensor in zip(found, tensors)]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives all ranks the array of one.

    Args:
      tensor: alike on all ranks.
      root_rank: whose it is: a rank of the job, also in a process set.
      name: as in `allreduce`.
      priority: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    starter = Starter(name, process_set)
    return _like(starter.broadcast(_host(tensor, "broadcast"), root_rank).result(), tensor)


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives all ranks the array of one, in place, and returns it; as `broadcast`."""
    starter = Starter(name, process_set)
    return _write(starter.broadcast(_host(tensor, "broadcast"), root_rank).result(), tensor)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of the array to each rank, and concatenates what comes in, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      splits: rows for each rank, integers that add up to n, as a list or an array; None: equal
        parts.
      name: as in `allreduce`.
      priority: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new array; with `splits` also the number of rows that came from each rank (int32 [ranks]).

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    array = _host(tensor, "alltoall")
    counts = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    if isinstance(counts, np.ndarray):
        counts = counts.astype(np.int64)
    found, received = Starter(name, process_set).alltoall(array, counts).result()
    result = _like(found, tensor)
    return result if splits is None else (result, _like(received, tensor))


def reducescatter(
    tensor: Any,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduces an array over all ranks and leaves each a block of dimension 0.

    Args:
      tensor: [n, ...], alike on all ranks; the first n % ranks blocks have one row more.
      op: Average, Sum, Min, Max or Product.
      name: as in `allreduce`.
      priority: no meaning.
      process_set: as in `allreduce`.
      prescale_factor: as in `allreduce`.
      postscale_factor: as in `allreduce`.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    how = Reduction(op, prescale_factor, postscale_factor)
    array = _host(tensor, "reducescatter")
    return _like(Starter(name, process_set).reducescatter(array, how).result(), tensor)


def grouped_reducescatter(
    tensors: Sequence[Any],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduces and scatters each array of a list, as one operation; as `reducescatter`."""
    how = Reduction(op, prescale_factor, postscale_factor)
    arrays = _hosts(tensors, "grouped_reducescatter")
    found = Starter(name, process_set).grouped_reducescatter(arrays, how).result()
    return [_like(one, tensor) for one, tensor in zip(found, tensors)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it.

    Raises:
      HorovodInternalError: a rank is gone, or has not come in time.
    """
    group = group_of(process_set)
    with internal_errors():
        herring.barrier(group=group)


def join() -> int:
    """Lets the others go on without this rank, until every rank has called it.

    The others' all-reduces and `DistributedTrainer` steps are done without it: it contributes
    nothing, and averages divide by the ranks that are left. Anything else that a rank calls
    meanwhile fails.

    Returns:
      The rank that was last.

    Raises:
      HorovodInternalError: a rank is gone, or not all have joined in time.
    """
    group_of(global_process_set)
    with internal_errors():
        return rounds.without_this_rank(herring.join)
