"""The collectives of Horovod's API on TensorFlow tensors, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.errors import InvalidArgumentError
from herring.horovod.common import waiting
from herring.horovod.common.basics import local_rank, local_size, rank
from herring.horovod.common.exceptions import NotSupportedError
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.operators import Average, Sum, operator_or_average
from herring.horovod.common.operators import (
    operator_or_average as handle_average_backwards_compatibility,
)
from herring.horovod.common.process_sets import (
    ProcessSet,
    global_process_set,
    group_of,
    process_set_of,
)
from herring.horovod.common.starter import Reduction
from herring.horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from herring.horovod.tensorflow import differentiable
from herring.horovod.tensorflow.compression import Compression
from herring.horovod.tensorflow.graph import dense, now

__all__ = [
    *__all__,
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "check_num_rank_power_of_2",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks.

    Averages and scaled sums of integers are computed in float64 and truncated; each rank's values
    are also truncated after the multiplication by `prescale_factor`. Averages of tf.IndexedSlices
    of integers are floats.

    Args:
      tensor: a tensor of any shape, the same shape and dtype on all ranks: float16, bfloat16,
        float32, float64, int8, int16, int32, int64, uint8, uint16, uint32 or bool. For
        tf.IndexedSlices, the slices of all ranks are gathered; their number may differ.
      op: Average (the default), Sum, Min, Max, Product or Adasum. Adasum needs floats and a power
        of two of ranks. tf.IndexedSlices need Average or Sum.

    Returns:
      A new tensor, or tf.IndexedSlices. Its gradient is reduced in the same way (Average and Sum).

    Raises:
      NotSupportedError: the operator for tf.IndexedSlices is not Average or Sum.
    """
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_slices(tensor, name, how, process_set)
    sent, context = compression.compress(dense(tensor, "allreduce"))
    found = differentiable.allreduce(sent, name, how, process_set)
    return compression.decompress(found, context)


def _allreduce_slices(
    slices: tf.IndexedSlices, name: str | None, how: Reduction, process_set: ProcessSet
) -> tf.IndexedSlices:
    if how.op not in (Average, Sum):
        raise NotSupportedError(
            f"allreduce of tf.IndexedSlices: op is {how.op!r}; it must be hvd.Average or hvd.Sum, "
            "or pass tf.convert_to_tensor(slices)"
        )
    group_of(process_set)
    parts = [slices.values, slices.indices]
    values, indices = differentiable.gathered_slices(
        parts, None if name is None else f"{name}.slices", how, process_set
    )
    if how.scaled:
        exact = values if values.dtype.is_floating else tf.cast(values, tf.float64)
        scaled = exact * tf.cast(how.prescale * how.postscale, exact.dtype)
        values = tf.cast(scaled, values.dtype)
    if how.op == Average:  # Averages of integers are floats.
        values = values / tf.cast(now(lambda: process_set.size() or 1), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


@tf.autograph.experimental.do_not_convert
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduces a list of tensors over all ranks as one operation; returns new tensors.

    Each tf.IndexedSlices in the list is an operation of its own.
    """
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    result: list[Any] = list(tensors)
    plain = []
    for i, one in enumerate(tensors):
        if isinstance(one, tf.IndexedSlices):
            label = None if name is None else f"{name}.{i}"
            result[i] = _allreduce_slices(one, label, how, process_set)
        else:
            plain.append(i)
    if tensors and not plain:
        return result
    sent, contexts = _compressed(compression, [tensors[i] for i in plain])
    found = differentiable.grouped_allreduce(sent, name, how, process_set)
    for i, one, context in zip(plain, found, contexts):
        result[i] = compression.decompress(one, context)
    return result


def _compressed(compression: Any, tensors: Sequence[Any]) -> tuple[list[tf.Tensor], list[Any]]:
    pairs = [compression.compress(dense(tensor, "a list of tensors")) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


@tf.autograph.experimental.do_not_convert
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: a tensor of shape [n, ...] and any dtype but strings; n may differ between ranks. A
        scalar counts as [1].

    Returns:
      A new tensor of shape [sum of n, ...]. Each rank's gradient is the average over all ranks of
      the gradients of its rows.
    """
    return differentiable.allgather(tensor, name, process_set)


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Concatenates each tensor of a list over all ranks, as one operation."""
    return differentiable.grouped_allgather(tensors, name, process_set)


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Copies a tensor from one rank to all ranks.

    Args:
      tensor: a tensor of any shape and any dtype but strings, the same on all ranks.

    Returns:
      A new tensor. The root's gradient is the average of all ranks' gradients; the gradients of the
      other ranks are zeros.
    """
    return differentiable.broadcast(tensor, root_rank, name, process_set)


@tf.autograph.experimental.do_not_convert
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of a tensor to each rank, and concatenates the received rows in rank order.

    Args:
      tensor: a tensor of shape [n, ...] and any dtype but strings; n may differ between ranks.
      splits: the number of rows for each rank, which add up to n; None sends equal parts.

    Returns:
      A new tensor with the received rows; its gradient is sent back to the ranks that the rows came
      from. With `splits`, also the number of rows from each rank (int32 [ranks]).
    """
    found, received = differentiable.alltoall(tensor, splits, name, process_set)
    return found if splits is None else (found, received)


@tf.autograph.experimental.do_not_convert
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and gives each rank one block of the result.

    Args:
      tensor: a tensor of shape [n, ...] with a dtype that `allreduce` supports, the same on all
        ranks. It is divided along dimension 0; the first n % ranks blocks have one row more.

    Returns:
      A new tensor. Gradients are gathered, and multiplied by the number of ranks for Sum, as in
      Horovod.
    """
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, context = compression.compress(dense(tensor, "reducescatter"))
    found = differentiable.reducescatter(sent, name, how, process_set)
    return compression.decompress(found, context)


@tf.autograph.experimental.do_not_convert
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduces and scatters each tensor of a list over all ranks, as one operation."""
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, contexts = _compressed(compression, tensors)
    found = differentiable.grouped_reducescatter(sent, name, how, process_set)
    return [compression.decompress(one, context) for one, context in zip(found, contexts)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank has called `barrier` (collective); not for use in a tf.function.

    Raises:
      InvalidArgumentError: called while a function is traced.
    """
    _require_eager("barrier")
    waiting.barrier(process_set)


def join() -> int:
    """Lets the other ranks continue without this rank, until every rank has called `join`.

    All-reduces, tapes and `DistributedOptimizer` steps of the other ranks complete without this
    rank. Averages divide by the number of all ranks, with zeros for those that have joined, unless
    ``init(joined_as_zeros=False)`` was called. Any other collective fails meanwhile. Do not call
    `join` in a tf.function.

    Returns:
      The rank that called `join` last.

    Raises:
      InvalidArgumentError: called while a function is traced.
      HorovodInternalError: a rank was lost, or not all ranks joined in time.
    """
    _require_eager("join")
    return waiting.join()


def _require_eager(what: str) -> None:
    if not tf.executing_eagerly():
        raise InvalidArgumentError(
            f"{what}() was called while a function is traced; call it from Python, between steps"
        )


def _value(function: Callable[[], int], name: str | None) -> tf.Tensor:
    """Returns an int32 scalar: the function's result at execution time, not at tracing time."""
    found = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, stateful=True, name=name)
    found.set_shape([])
    return found


def _registered(process_set_id: int) -> ProcessSet:
    process_set = process_set_of(process_set_id)
    if process_set is None:
        raise InvalidArgumentError(
            f"process_set_id is {process_set_id}; no registered process set has this number"
        )
    return process_set


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks in a process set at execution time, an int32 scalar.

    Args:
      process_set_id: number of a registered process set; 0 is the set of all ranks.
      name: name of the operation in the graph.

    Raises:
      InvalidArgumentError: no process set has this number. In a graph, the error is a
        tf.errors.OpError.
    """
    return _value(lambda: _registered(process_set_id).size() or 0, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns the number of ranks on this node at execution time, an int32 scalar."""
    return _value(local_size, name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this worker's rank at execution time, an int32 scalar."""
    return _value(rank, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns this worker's rank on its node at execution time, an int32 scalar."""
    return _value(local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns 1 if this rank is in a process set at execution time, else 0, an int32 scalar.

    Args:
      process_set_id: number of a registered process set; 0 is the set of all ranks.
      name: name of the operation in the graph.

    Raises:
      InvalidArgumentError: no process set has this number. In a graph, the error is a
        tf.errors.OpError.
    """
    return _value(lambda: int(bool(_registered(process_set_id).included())), name)
