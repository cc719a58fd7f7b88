"""The collectives of Horovod's API on TensorFlow's tensors, eagerly and in graphs.

Operations match across ranks by `name`. Without one, eager ones match by the number of the call of
their kind, and those of a graph by the name of their tensor in it. All take `process_set`, whose
ranks alone call them. Tapes see them; gradients are averaged over ranks as in Horovod. Arguments
`device_dense`, `device_sparse` and `ignore_name_scope` have no meaning.

What one rank refuses, or on which ranks disagree, fails with the same error on all of them: a
`HorovodInternalError`. From a graph TensorFlow raises its own errors (`tf.errors.OpError`) with the
text of Herring's in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.errors import InvalidArgumentError
from herring.horovod.common import waiting
from herring.horovod.common.basics import local_rank, local_size, rank
from herring.horovod.common.exceptions import (
    NotSupportedError,
)
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.operators import (
    Average,
    Sum,
    operator_or_average,
)
from herring.horovod.common.process_sets import (
    ProcessSet,
    global_process_set,
    group_of,
    process_set_of,
)
from herring.horovod.common.starter import Reduction
from herring.horovod.tensorflow import differentiable
from herring.horovod.tensorflow.compression import Compression
from herring.horovod.tensorflow.graph import dense

__all__ = [
    *__all__,
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
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

    Averages and scaled sums of integers are computed in float64 and cut towards zero; each rank's
    are cut when they are multiplied by `prescale_factor`. Averages of tf.IndexedSlices of integers
    are floats.

    Args:
      tensor: any shape; float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8,
        uint16, uint32 or bool; alike on all ranks. Of tf.IndexedSlices all ranks get the slices of
        all, with any number on each.
      average: older than `op`: True is Average, False is Sum.
      device_dense: no meaning.
      device_sparse: no meaning.
      compression: `Compression.none`, `Compression.fp16` or a class like these.
      op: Average (None), Sum, Adasum (floats, and a power of two of ranks), Min, Max or Product;
        for tf.IndexedSlices Average or Sum.
      prescale_factor: multiplies each rank's values first.
      postscale_factor: multiplies the result.
      name: identifies the operation across ranks.
      process_set: who takes part.
      ignore_name_scope: no meaning.

    Returns:
      A new tensor, or tf.IndexedSlices. Its gradient is reduced in the same way (Average and Sum).

    Raises:
      InvalidArgumentError: no such operator, dtype or layout; compiled by XLA; a process set that
        is not registered, or without this rank. From an eager call it is a
        tf.errors.InvalidArgumentError as well.
      NotSupportedError: tf.IndexedSlices with another operator than Average and Sum.
      HorovodInternalError: ranks disagree (MismatchError, eagerly also a
        tf.errors.FailedPreconditionError), one is gone (PeerLostError) or missing (TimeoutError).
        From a graph tf.errors.OpError.
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
    values, indices = differentiable.grouped_allgather(
        parts, None if name is None else f"{name}.slices", process_set
    )
    if how.scaled:
        exact = values if values.dtype.is_floating else tf.cast(values, tf.float64)
        scaled = exact * tf.cast(how.prescale * how.postscale, exact.dtype)
        values = tf.cast(scaled, values.dtype)
    if how.op == Average:  # of integers these are floats
        values = values / tf.cast(process_set.size() or 1, values.dtype)
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
    """Reduces a list of tensors, of any shapes and dtypes, as one operation: all of it or none.

    Each tf.IndexedSlices among them is an operation of its own.

    Args and errors as in `allreduce`.

    Returns:
      New tensors, as a list.
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
      tensor: [n, ...], any dtype but strings; n may differ between ranks. A scalar counts as [1].
      name: as in `allreduce`.
      ignore_name_scope: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new tensor [sum of n, ...]; each rank's gradient is the average of all ranks' for its rows.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return differentiable.allgather(tensor, name, process_set)


@tf.autograph.experimental.do_not_convert
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Concatenates each tensor of a list over all ranks, as one operation; as `allgather`."""
    return differentiable.grouped_allgather(tensors, name, process_set)


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives all ranks the tensor of one.

    Args:
      tensor: any shape, any dtype but strings; alike on all ranks.
      root_rank: whose it is: a rank of the job, also in a process set.
      name: as in `allreduce`.
      ignore_name_scope: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new tensor. The root's gradient is the average of all ranks', the others' are zeros.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
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
    """Sends rows of the tensor to each rank, and concatenates what comes in, in rank order.

    Args:
      tensor: [n, ...], any dtype but strings; n may differ between ranks.
      splits: rows for each rank, integers that add up to n; None: equal parts.
      name: as in `allreduce`.
      ignore_name_scope: no meaning.
      process_set: as in `allreduce`.

    Returns:
      A new tensor, whose gradient goes the way back; with `splits` also the number of rows that
      came from each rank (int32 [ranks]).

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
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
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and leaves each a block of dimension 0.

    Args:
      tensor: [n, ...], dtypes of `allreduce`, alike on all ranks; the first n % ranks blocks have
        one row more.
      device_dense: no meaning.
      compression: as in `allreduce`.
      op: Average, Sum, Min, Max or Product.
      name: as in `allreduce`.
      process_set: as in `allreduce`.
      prescale_factor: as in `allreduce`.
      postscale_factor: as in `allreduce`.

    Returns:
      A new tensor. Gradients are gathered, and for Sum multiplied by the number of ranks, as
      Horovod has it.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
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
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduces and scatters each tensor of a list, as one operation; as `reducescatter`."""
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, contexts = _compressed(compression, tensors)
    found = differentiable.grouped_reducescatter(sent, name, how, process_set)
    return [compression.decompress(one, context) for one, context in zip(found, contexts)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it; not inside a tf.function.

    Raises:
      InvalidArgumentError: called while a function is traced.
      HorovodInternalError: a rank is gone, or has not come in time.
    """
    _require_eager("barrier")
    waiting.barrier(process_set)


def join() -> int:
    """Lets the others go on without this rank, until every rank has called it.

    The others' all-reduces, tapes and `DistributedOptimizer` steps are done without it: it
    contributes nothing, and averages divide by the ranks that are left (in Horovod by all ranks,
    with zeros of those that have joined). Anything else that a rank calls meanwhile fails. Not
    inside a tf.function.

    Returns:
      The rank that was last.

    Raises:
      InvalidArgumentError: called while a function is traced.
      HorovodInternalError: a rank is gone, or not all have joined in time.
    """
    _require_eager("join")
    return waiting.join()


def _require_eager(what: str) -> None:
    if not tf.executing_eagerly():
        raise InvalidArgumentError(
            f"{what}() is called while a function is traced; call it from Python, between steps"
        )


def _value(function: Callable[[], int], name: str | None) -> tf.Tensor:
    """What a function returns when it is executed, not when it is traced: int32, a scalar."""
    found = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, stateful=True, name=name)
    found.set_shape([])
    return found


def _registered(process_set_id: int) -> ProcessSet:
    process_set = process_set_of(process_set_id)
    if process_set is None:
        raise InvalidArgumentError(
            f"process_set_id is {process_set_id}; no process set that is registered has it"
        )
    return process_set


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Number of ranks in a process set when it is executed: int32, a scalar.

    Args:
      process_set_id: of a registered process set; 0: all ranks.
      name: of the operation in the graph.

    Raises:
      InvalidArgumentError: there is no such process set; from a graph tf.errors.OpError.
    """
    return _value(lambda: _registered(process_set_id).size() or 0, name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Number of ranks on this node when it is executed: int32, a scalar."""
    return _value(local_size, name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """This rank when it is executed: int32, a scalar."""
    return _value(rank, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This rank's number on its node when it is executed: int32, a scalar."""
    return _value(local_rank, name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Whether this rank is in a process set when it is executed: int32, 1 or 0, a scalar.

    Args:
      process_set_id: as of `size_op`.
      name: as of `size_op`.

    Raises:
      InvalidArgumentError: as `size_op`.
    """
    return _value(lambda: int(bool(_registered(process_set_id).included())), name)
