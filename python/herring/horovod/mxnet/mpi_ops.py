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

from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.operators import (
    Average,
    operator_or_average,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.common.starter import Reduction
from herring.horovod.common.waiting import barrier, join
from herring.horovod.mxnet.starts import Starter

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
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).allreduce(tensor, how).result()


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
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).allreduce(tensor, how, in_place=True).result()


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
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_allreduce(tensors, how).result()


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
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_allreduce(tensors, how, in_place=True).result()


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
    return Starter(name, process_set).allgather(tensor).result()


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates each array of a list over all ranks, as one operation; as `allgather`."""
    return Starter(name, process_set).grouped_allgather(tensors).result()


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
    return Starter(name, process_set).broadcast(tensor, root_rank).result()


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives all ranks the array of one, in place, and returns it; as `broadcast`."""
    return Starter(name, process_set).broadcast(tensor, root_rank, in_place=True).result()


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
    counts = splits.asnumpy() if isinstance(splits, mx.nd.NDArray) else splits
    if isinstance(counts, np.ndarray):
        counts = counts.astype(np.int64)
    found, received = Starter(name, process_set).alltoall(tensor, counts).result()
    return found if splits is None else (found, received)


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
    return Starter(name, process_set).reducescatter(tensor, how).result()


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
    return Starter(name, process_set).grouped_reducescatter(tensors, how).result()
