"""Collectives on dense tensors as tapes see them, with the gradients that Horovod gives them.

In a backward pass operations are named after those of the forward pass, so that ranks may pass
through several in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

import herring
from herring.horovod.common.host import Reduction, blocks
from herring.horovod.common.operators import Average, Sum, require_linear
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.tensorflow.graph import dense, run

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


def allreduce(tensor: Any, name: str | None, how: Reduction, process_set: ProcessSet) -> tf.Tensor:
    """Reduces a tensor; gradients are reduced as it was."""

    @tf.custom_gradient
    def reduced(x: tf.Tensor) -> Any:
        (found,), label = run(
            "allreduce",
            lambda starter, array: starter.allreduce(array, how),
            [x],
            name,
            process_set,
            [(x.dtype, x.shape)],
        )

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            require_linear(how.op, "allreduce", _ADVICE)
            return allreduce(dy, f"{label}.gradient", how, process_set)

        return found, gradient

    return reduced(dense(tensor, "allreduce"))


def grouped_allreduce(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `allreduce`, for a list."""
    kind = "grouped_allreduce"

    def reduced(*xs: tf.Tensor) -> Any:
        found, label = run(
            kind,
            lambda starter, *arrays: starter.grouped_allreduce(arrays, how),
            xs,
            name,
            process_set,
            [(x.dtype, x.shape) for x in xs],
        )

        def gradient(*dys: tf.Tensor) -> list[tf.Tensor]:
            require_linear(how.op, kind, _ADVICE)
            return grouped_allreduce(dys, f"{label}.gradient", how, process_set)

        return found, gradient

    listed = [dense(tensor, kind) for tensor in tensors]
    return _of_list(reduced, listed)


def _of_list(function: Callable[..., Any], tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Calls a function that returns a list and its gradient; of no tensors there is none."""
    if not tensors:
        function()
        return []
    found = tf.custom_gradient(function)(*tensors)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _gathered_shape(tensor: tf.Tensor) -> tf.TensorShape:
    shape = tensor.shape
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


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


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """Concatenates tensors; a rank's gradient is the average of all ranks' for its rows."""

    @tf.custom_gradient
    def gathered(x: tf.Tensor) -> Any:
        (found,), label = run(
            "allgather",
            lambda starter, array: starter.allgather(array),
            [x],
            name,
            process_set,
            [(x.dtype, _gathered_shape(x))],
        )

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            whole = allreduce(dy, f"{label}.gradient", Reduction(Average), process_set)
            return _part_of(whole, x, f"{label}.gradient.rows", process_set)

        return found, gradient

    return gathered(dense(tensor, "allgather"))


def grouped_allgather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `allgather`, for a list."""
    kind = "grouped_allgather"

    def gathered(*xs: tf.Tensor) -> Any:
        found, label = run(
            kind,
            lambda starter, *arrays: starter.grouped_allgather(arrays),
            xs,
            name,
            process_set,
            [(x.dtype, _gathered_shape(x)) for x in xs],
        )

        def gradient(*dys: tf.Tensor) -> list[tf.Tensor]:
            name = f"{label}.gradient"
            wholes = grouped_allreduce(dys, name, Reduction(Average), process_set)
            return [
                _part_of(whole, x, f"{name}.rows.{i}", process_set)
                for i, (whole, x) in enumerate(zip(wholes, xs))
            ]

        return found, gradient

    listed = [dense(tensor, kind) for tensor in tensors]
    return _of_list(gathered, listed)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> tf.Tensor:
    """The root's tensor; its gradient is the average of all ranks', the others' are zeros."""

    @tf.custom_gradient
    def given(x: tf.Tensor) -> Any:
        (found,), label = run(
            "broadcast",
            lambda starter, array: starter.broadcast(array, root_rank),
            [x],
            name,
            process_set,
            [(x.dtype, x.shape)],
        )

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            whole = allreduce(dy, f"{label}.gradient", Reduction(Average), process_set)
            if herring.rank() == root_rank:
                return whole
            with tf.control_dependencies([whole]):  # else a Session would leave it out here
                return tf.zeros_like(whole)

        return found, gradient

    return given(dense(tensor, "broadcast"))


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
    rows = None if shape[0] is None or not size else blocks(shape[0], size, rank or 0)
    return tf.TensorShape([rows, *shape[1:]])


def _scattered_gradient(dy: tf.Tensor, how: Reduction, process_set: ProcessSet) -> tf.Tensor:
    ranks = process_set.size() or 1
    factor = how.prescale * how.postscale * (ranks if how.op == Sum else 1)
    return dy if factor == 1 else dy * tf.cast(factor, dy.dtype)


def reducescatter(
    tensor: Any, name: str | None, how: Reduction, process_set: ProcessSet
) -> tf.Tensor:
    """Reduces and leaves a block; gradients are gathered, times the ranks where it was summed."""

    @tf.custom_gradient
    def scattered(x: tf.Tensor) -> Any:
        (found,), label = run(
            "reducescatter",
            lambda starter, array: starter.reducescatter(array, how),
            [x],
            name,
            process_set,
            [(x.dtype, _scattered_shape(x, process_set))],
        )

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            require_linear(how.op, "reducescatter", _ADVICE)
            sent = _scattered_gradient(dy, how, process_set)
            return allgather(sent, f"{label}.gradient", process_set)

        return found, gradient

    return scattered(dense(tensor, "reducescatter"))


def grouped_reducescatter(
    tensors: Sequence[Any], name: str | None, how: Reduction, process_set: ProcessSet
) -> list[tf.Tensor]:
    """As `reducescatter`, for a list."""
    kind = "grouped_reducescatter"

    def scattered(*xs: tf.Tensor) -> Any:
        found, label = run(
            kind,
            lambda starter, *arrays: starter.grouped_reducescatter(arrays, how),
            xs,
            name,
            process_set,
            [(x.dtype, _scattered_shape(x, process_set)) for x in xs],
        )

        def gradient(*dys: tf.Tensor) -> list[tf.Tensor]:
            require_linear(how.op, kind, _ADVICE)
            sent = [_scattered_gradient(dy, how, process_set) for dy in dys]
            return grouped_allgather(sent, f"{label}.gradient", process_set)

        return found, gradient

    listed = [dense(tensor, kind) for tensor in tensors]
    return _of_list(scattered, listed)
