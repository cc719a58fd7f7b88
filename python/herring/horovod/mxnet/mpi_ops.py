"""The collectives of Horovod's API on MXNet arrays.

Functions whose name ends with ``_`` write into the arrays given. Other functions return new arrays
of the same class (mx.nd.NDArray or mx.np.ndarray) and context. A function returns when the
operation is complete, so `priority` is ignored. Autograd does not record the functions. Operations
match across ranks by `name`; without a name, the n-th call of a kind matches the n-th call on every
other rank. Only the ranks of `process_set` call a function.
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

    Averages and scaled sums of integers are computed in float64 and truncated.

    Args:
      tensor: an array of any shape, the same shape and dtype on all ranks: float16, float32,
        float64, int8, int32, int64, uint8 or bool.
      average: older form of `op`: True is Average, False is Sum.
      name: identifies the operation across ranks; None numbers the calls.
      priority: ignored.
      prescale_factor: factor for each rank's values before the reduction.
      postscale_factor: factor for the result.
      process_set: the ranks that take part.
      op: Average (the default), Sum, Min, Max, Product or Adasum. Adasum needs floats and a power
        of two of ranks.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError: the operator, dtype or layout is not supported, or the process set is
        not registered or does not contain this rank.
      HorovodInternalError: ranks disagree (also a MismatchError), a rank was lost (also a
        PeerLostError), or a rank did not call in time (also a TimeoutError).
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
    """Reduces an array over all ranks in place and returns it.

    The arguments and errors are those of `allreduce`.
    """
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
    """Reduces a list of arrays over all ranks as one operation.

    The operation succeeds or fails for all arrays, which may have different shapes and dtypes. The
    other arguments and the errors are those of `allreduce`.

    Returns:
      A list of new arrays.
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
    """Reduces a list of arrays over all ranks in place and returns the list.

    The arguments and errors are those of `allreduce`.
    """
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
      tensor: an array of shape [n, ...]; n may differ between ranks.
      name: identifies the operation across ranks; None numbers the calls.
      priority: ignored.
      process_set: the ranks that take part.

    Returns:
      A new array of shape [sum of n, ...].

    Raises:
      InvalidArgumentError: an argument is invalid, or the process set is not registered or does
        not contain this rank.
      HorovodInternalError: ranks disagree, or a rank was lost or did not call in time.
    """
    return Starter(name, process_set).allgather(tensor).result()


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenates each array of a list over all ranks, as one operation.

    The other arguments and the errors are those of `allgather`.

    Returns:
      A list of new arrays.
    """
    return Starter(name, process_set).grouped_allgather(tensors).result()


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies an array from one rank to all ranks.

    Args:
      tensor: an array with the same shape and dtype on all ranks.
      root_rank: the rank whose values are copied; a rank of the job, also with a process set.
      name: identifies the operation across ranks; None numbers the calls.
      priority: ignored.
      process_set: the ranks that take part.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError: an argument is invalid, or the process set is not registered or does
        not contain this rank.
      HorovodInternalError: ranks disagree, or a rank was lost or did not call in time.
    """
    return Starter(name, process_set).broadcast(tensor, root_rank).result()


def broadcast_(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Copies an array from one rank to all ranks in place and returns it.

    The arguments and errors are those of `broadcast`.
    """
    return Starter(name, process_set).broadcast(tensor, root_rank, in_place=True).result()


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of an array to each rank, and concatenates the received rows in rank order.

    Args:
      tensor: an array of shape [n, ...]; n may differ between ranks.
      splits: a list or array with the number of rows for each rank, which add up to n; None sends
        equal parts.
      name: identifies the operation across ranks; None numbers the calls.
      priority: ignored.
      process_set: the ranks that take part.

    Returns:
      A new array with the received rows. With `splits`, also the number of rows from each rank
      (int32 [ranks]).

    Raises:
      InvalidArgumentError: an argument is invalid, or the process set is not registered or does
        not contain this rank.
      HorovodInternalError: ranks disagree, or a rank was lost or did not call in time.
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
    """Reduces an array over all ranks and gives each rank one block of the result.

    Args:
      tensor: an array of shape [n, ...], the same on all ranks. It is divided along dimension 0;
        the first n % ranks blocks have one row more than the others.
      op: Average, Sum, Min, Max or Product.
      name: identifies the operation across ranks; None numbers the calls.
      priority: ignored.
      process_set: the ranks that take part.
      prescale_factor: factor for each rank's values before the reduction.
      postscale_factor: factor for the result.

    Returns:
      A new array.

    Raises:
      InvalidArgumentError: an argument is invalid, or the process set is not registered or does
        not contain this rank.
      HorovodInternalError: ranks disagree, or a rank was lost or did not call in time.
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
    """Reduces and scatters each array of a list over all ranks, as one operation.

    The other arguments and the errors are those of `reducescatter`.

    Returns:
      A list of new arrays.
    """
    how = Reduction(op, prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_reducescatter(tensors, how).result()
