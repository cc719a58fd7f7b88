"""Collectives on dense tensors as tapes see them, with the gradients that Horovod gives them.

In a backward pass operations are named after those of the forward pass, so that ranks may pass
through several in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import herring
from herring.horovod.common.handles import Call
from herring.horovod.common.host import Starter
from herring.horovod.common.operators import Average, Sum, require_linear
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.common.starter import Reduction
from herring.horovod.tensorflow.graph import dense, run
from herring.split import even_parts

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]

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
    """Runs a collective that has a result for each tensor, as tapes see it.

    Args:
      kind: the method of `Starter` that starts it, of one tensor or of a list.
      tensors: what is sent; one, where it is not of a list.
      options: what the method takes beside.
      name: as of `run`.
      process_set: as of `run`.
      shape_of: the shape of the result of a tensor.
      backward: called with the gradients of the results, the tensors and a name; returns the
        gradients of the tensors.

    Returns:
      The results.
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

    if not listed:  # of no tensors there is no gradient
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
    """Reduces a tensor; gradients are reduced as it was."""
    return _reduced("allreduce", [tensor], name, how, process_set)[0]


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `allreduce`, for a list."""
    return _reduced("grouped_allreduce", tensors, name, how, process_set)


def _part_of(whole: tf.Tensor, tensor: tf.Tensor, name: str, process_set: ProcessSet) -> tf.Tensor:
    """This rank's rows of what was gathered from tensors such as this one."""
    rows = tf.reshape(tf.shape(tensor)[:1], [-1]) if tensor.shape.rank != 0 else tf.constant([1])
    (counts,), _ = run(
        "allgather",
        lambda starter, array: starter.allgather(array),
        [rows],
        name,
        process_set,
        [(tf.int32, [process_set.size()])],
    )
    first = tf.reduce_sum(counts[: process_set.rank()])
    return tf.reshape(whole[first : first + rows[0]], tf.shape(tensor))


def _gathered(
    kind: str, tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    def backward(dys: Sequence[tf.Tensor], xs: Sequence[tf.Tensor], label: str) -> list[tf.Tensor]:
        reduces = kind.replace("allgather", "allreduce")
        wholes = _reduced(reduces, dys, label, Reduction(Average), process_set)
        return [
            _part_of(whole, x, f"{label}.rows.{i}", process_set)
            for i, (whole, x) in enumerate(zip(wholes, xs))
        ]

    return _recorded(kind, tensors, [], name, process_set, _gathered_shape, backward)


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """Concatenates tensors; a rank's gradient is the average of all ranks' for its rows."""
    return _gathered("allgather", [tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `allgather`, for a list."""
    return _gathered("grouped_allgather", tensors, name, process_set)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """The root's tensor; its gradient is the average of all ranks', the others' are zeros."""

    def backward(dys: Sequence[tf.Tensor], _: Any, label: str) -> list[tf.Tensor]:
        whole = allreduce(dys[0], label, Reduction(Average), process_set)
        if herring.rank() == root_rank:
            return [whole]
        with tf.control_dependencies([whole]):  # else a Session would leave it out here
            return [tf.zeros_like(whole)]

    options = [root_rank]
    return _recorded(
        "broadcast", [tensor], options, name, process_set, lambda x: x.shape, backward
    )[0]


def alltoall(
    tensor: Any, splits: Any, name: str | None, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Exchanges rows, and says how many came from each rank; gradients go the way back."""

    @tf.custom_gradient
    def exchanged(x: tf.Tensor, *counts: tf.Tensor) -> Any:
        (found, came), label = run(
            "alltoall",
            lambda starter, array, *splits: starter.alltoall(array, *(splits or (None,))),
            [x, *counts],
            name,
            process_set,
            [(x.dtype, _gathered_shape(x)), (tf.int32, [process_set.size()])],
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
    rows = None if shape[0] is None or not size else even_parts(shape[0], size)[rank or 0]
    return tf.TensorShape([rows, *shape[1:]])


def _scattered_gradient(dy: tf.Tensor, how: Reduction, process_set: ProcessSet) -> tf.Tensor:
    ranks = process_set.size() or 1
    factor = how.prescale * how.postscale * (ranks if how.op == Sum else 1)
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
    """Reduces and leaves a block; gradients are gathered, times the ranks where it was summed."""
    return _scattered("reducescatter", [tensor], name, how, process_set)[0]


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `reducescatter`, for a list."""
    return _scattered("grouped_reducescatter", tensors, name, how, process_set)
