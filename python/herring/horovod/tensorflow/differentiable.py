"""Collectives on dense tensors that tapes record, with the same gradients as in Horovod.

In a backward pass, operations are named after those of the forward pass, so that each rank may
reach several of them in a different order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import herring
from herring.base.split import even_parts
from herring.horovod.common.handles import Call
from herring.horovod.common.host import Starter
from herring.horovod.common.operators import Average, Sum, require_linear
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.common.starter import Reduction
from herring.horovod.tensorflow.graph import dense, lasts, now, run

_ADVICE = "tf.stop_gradient()"


def _gathered_shape(tensor: tf.Tensor) -> tf.TensorShape:
    shape = tensor.shape
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


def _recorded(
    kind: str,
    tensors: Sequence[Any],
    options: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    shape_of: Callable[[tf.Tensor], tf.TensorShape],
    backward: Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor], str], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Runs a collective with one result for each tensor, and records it on tapes.

    Args:
      kind: the method of `Starter` that starts the collective, for one tensor or a list.
      tensors: the tensors to send; exactly one if the method takes one tensor.
      backward: returns the gradients of the tensors, given the gradients of the results, the
        tensors and a name.
    """
    listed = [dense(tensor, kind) for tensor in tensors]

    def start(starter: Starter, *arrays: np.ndarray) -> Call:
        sent = arrays if kind.startswith("grouped") else arrays[0]
        call: Call = getattr(starter, kind)(sent, *options)
        return call

    def function(*xs: tf.Tensor) -> Any:
        results = [(x.dtype, shape_of(x)) for x in xs]
        found, label = run(kind, start, xs, name, process_set, results)
        return found, lambda *dys: backward(dys, xs, f"{label}.gradient")

    if not listed:  # An empty list has no gradient.
        function()
        return []
    found = tf.custom_gradient(function)(*listed)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _reduced(
    kind: str, tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    def backward(dys: Sequence[tf.Tensor], _: Any, label: str) -> list[tf.Tensor]:
        require_linear(how.op, kind, _ADVICE)
        return _reduced(kind, dys, label, how, process_set)

    return _recorded(kind, tensors, [how], name, process_set, lambda x: x.shape, backward)


def allreduce(tensor: Any, name: str | None, how: Reduction, process_set: ProcessSet) -> tf.Tensor:
    """Reduces a tensor over all ranks; its gradient is reduced in the same way."""
    return _reduced("allreduce", [tensor], name, how, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Reduces a list of tensors over all ranks; their gradients are reduced in the same way."""
    return _reduced("grouped_allreduce", tensors, name, how, process_set)


def _part_of(whole: tf.Tensor, tensor: tf.Tensor, name: str, process_set: ProcessSet) -> tf.Tensor:
    """Returns this rank's rows of `whole`, which was gathered from all ranks' `tensor`."""
    rows = tf.reshape(tf.shape(tensor)[:1], [-1]) if tensor.shape.rank != 0 else tf.constant([1])
    (counts,), _ = run(
        "allgather",
        lambda starter, array: starter.allgather(array),
        [rows],
        name,
        process_set,
        [(tf.int32, [None if lasts() else process_set.size()])],
    )
    first = tf.reduce_sum(counts[: now(lambda: process_set.rank() or 0)])
    return tf.reshape(whole[first : first + rows[0]], tf.shape(tensor))


def _gathered(
    kind: str,
    tensors: Sequence[Any],
    name: str | None,
    process_set: ProcessSet,
    options: Sequence[Any] = (),
) -> list[tf.Tensor]:
    def backward(dys: Sequence[tf.Tensor], xs: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
        reduces = kind.replace("allgather", "allreduce")
        wholes = _reduced(reduces, dys, label, Reduction(Average), process_set)
        return [
            _part_of(whole, x, f"{label}.rows.{i}", process_set)
            for i, (whole, x) in enumerate(zip(wholes, xs))
        ]

    return _recorded(kind, tensors, options, name, process_set, _gathered_shape, backward)


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """Concatenates all ranks' tensors; a gradient is the average over all ranks, for own rows."""
    return _gathered("allgather", [tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Concatenates each tensor of a list over all ranks; gradients are averages for own rows."""
    return _gathered("grouped_allgather", tensors, name, process_set)


def gathered_slices(
    parts: Sequence[tf.Tensor], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Concatenates the values and the indices of all ranks' slices, to be reduced as `how` says.

    Gradients are averages for own rows.
    """
    return _gathered("grouped_allgather", parts, name, process_set, [how])


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """Copies the root's tensor; the root's gradient is the average, all others are zeros."""

    def backward(dys: Sequence[tf.Tensor], _: Any, label: str) -> list[tf.Tensor]:
        whole = allreduce(dys[0], label, Reduction(Average), process_set)
        if lasts():
            return [tf.where(now(herring.rank) == root_rank, whole, tf.zeros_like(whole))]
        if herring.rank() == root_rank:
            return [whole]
        with tf.control_dependencies([whole]):  # Otherwise a Session would skip it on this rank.
            return [tf.zeros_like(whole)]

    options = [root_rank]
    return _recorded(
        "broadcast", [tensor], options, name, process_set, lambda x: x.shape, backward
    )[0]


def alltoall(
    tensor: Any, splits: Any, name: str | None, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Exchanges rows and returns how many came from each rank; gradients are sent back."""

    @tf.custom_gradient
    def exchanged(x: tf.Tensor, *counts: tf.Tensor) -> Any:
        (found, came), label = run(
            "alltoall",
            lambda starter, array, *splits: starter.alltoall(array, *(splits or (None,))),
            [x, *counts],
            name,
            process_set,
            [(x.dtype, _gathered_shape(x)), (tf.int32, [None if lasts() else process_set.size()])],
        )

        def gradient(dy: tf.Tensor, _: tf.Tensor) -> list[Any]:
            back, _ = alltoall(dy, came, f"{label}.gradient", process_set)
            return [tf.reshape(back, tf.shape(x)), *[None] * len(counts)]

        return (found, came), gradient

    counts = [] if splits is None else [tf.cast(tf.convert_to_tensor(splits), tf.int64)]
    found, came = exchanged(dense(tensor, "alltoall"), *counts)
    return found, came


def _scattered_shape(tensor: tf.Tensor, process_set: ProcessSet) -> tf.TensorShape:
    shape, size, rank = tensor.shape, process_set.size(), process_set.rank()
    if shape.rank in (None, 0):
        return tf.TensorShape(None)
    rows = None
    if shape[0] is not None and size and not lasts():
        rows = even_parts(shape[0], size)[rank or 0]
    return tf.TensorShape([rows, *shape[1:]])


def _scattered_gradient(dy: tf.Tensor, how: Reduction, process_set: ProcessSet) -> tf.Tensor:
    factor = how.prescale * how.postscale
    if how.op == Sum:
        dy = dy * tf.cast(now(lambda: process_set.size() or 1), dy.dtype)
    return dy if factor == 1 else dy * tf.cast(factor, dy.dtype)


def _scattered(
    kind: str, tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    def backward(dys: Sequence[tf.Tensor], _: Any, label: str) -> list[tf.Tensor]:
        require_linear(how.op, kind, _ADVICE)
        sent = [_scattered_gradient(dy, how, process_set) for dy in dys]
        return _gathered(kind.replace("reducescatter", "allgather"), sent, label, process_set)

    def shape_of(x: tf.Tensor) -> tf.TensorShape:
        return _scattered_shape(x, process_set)

    return _recorded(kind, tensors, [how], name, process_set, shape_of, backward)


def reducescatter(
    tensor: Any, name: str | None, how: Reduction, process_set: ProcessSet
) -> tf.Tensor:
    """Reduces a tensor and returns this rank's block; gradients are gathered.

    If the operator is Sum, the gathered gradients are multiplied by the number of ranks.
    """
    return _scattered("reducescatter", [tensor], name, how, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Reduces and scatters each tensor of a list; gradients are gathered as for one tensor."""
    return _scattered("grouped_reducescatter", tensors, name, how, process_set)
