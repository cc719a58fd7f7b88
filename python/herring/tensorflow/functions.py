"""Collectives on tensors, eagerly and in graphs, and the broadcast of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

import herring
from herring.arrays.arguments import Operator
from herring.arrays.calls import name_of_next
from herring.arrays.gradients import fresh
from herring.arrays.groups import Group, scope_of
from herring.arrays.values import broadcast_values
from herring.errors import InvalidArgumentError
from herring.tensorflow.copies import say_copies
from herring.tensorflow.graphs import name_in_graph, name_of_use
from herring.tensorflow.ops import remember, update
from herring.tensorflow.xla import refuse_xla


def _ready(kind: str, tensor: Any, name: str | None, group: Group | None) -> tuple[Any, str]:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype == tf.bfloat16:
        raise InvalidArgumentError(f"{kind}: cast the bfloat16 tensor to float32 first")
    kinds = tensor.dtype.is_floating, tensor.dtype.is_integer, tensor.dtype.is_complex
    if not (any(kinds) or tensor.dtype.is_bool):
        raise InvalidArgumentError(
            f"{kind}: a tensor of {tensor.dtype.name} holds no numbers; use broadcast_object or "
            "allgather_object"
        )
    scope_of(group)
    say_copies(f"herring.tensorflow.{kind}", [tensor])
    if tf.executing_eagerly():
        return tensor, name or name_of_next(f"tensorflow.{kind}", group)
    name = name_of_use(name) if name else name_in_graph(f"tensorflow.{kind}", tensor)
    refuse_xla(name)
    return tensor, name


def _in_place(tensor: tf.Tensor, collective: Callable[[np.ndarray], object]) -> tf.Tensor:
    if not tf.executing_eagerly():
        return update(lambda arrays: collective(arrays[0]), [tensor])[0]
    array = fresh(tensor.shape, tensor.dtype.as_numpy_dtype)
    array[...] = tensor.numpy()
    collective(array)
    return tf.convert_to_tensor(array)


def _value(value: Any) -> np.ndarray:
    """Returns a variable's value as an array; a string without dimensions comes as bytes."""
    return np.asarray(value, object if isinstance(value, (bytes, str)) else None)


@tf.autograph.experimental.do_not_convert
def allreduce(
    tensor: Any, op: Operator = "average", *, name: str | None = None, group: Group | None = None
) -> tf.Tensor:
    """Reduces a tensor over all ranks, element by element; no gradient flows through it.

    Args:
      tensor: any shape; any dtype of `herring.allreduce` except bfloat16. Shape and dtype must be
        equal on all ranks.
      name: identifies the operation; None: eager calls are numbered, and calls of a graph are
        identified by the names of function and tensor.

    Returns:
      A new tensor.

    Raises:
      InvalidArgumentError: a value or the dtype is not supported.
      PeerLostError, TimeoutError: a rank is gone, or has not called in time. From a graph
        TensorFlow raises tf.errors.UnknownError with the text of these errors.
    """
    tensor, name = _ready("allreduce", tensor, name, group)
    return _in_place(tensor, lambda array: herring.allreduce(array, op, name=name, group=group))


@tf.autograph.experimental.do_not_convert
def broadcast(
    tensor: Any, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> tf.Tensor:
    """Returns the tensor of rank `root` on all ranks.

    Args:
      tensor: any shape; any dtype of `allreduce`. Shape and dtype must be equal on all ranks.
      root: a rank; its index inside the group if there is a group.
      name: identifies the operation; None: eager calls are numbered, and calls of a graph are
        identified by the names of function and tensor.

    Returns:
      A new tensor.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: for the same reasons as in
        `allreduce`.
    """
    tensor, name = _ready("broadcast", tensor, name, group)
    return _in_place(tensor, lambda array: herring.broadcast(array, root, name=name, group=group))


@tf.autograph.experimental.do_not_convert
def allgather(tensor: Any, *, name: str | None = None, group: Group | None = None) -> tf.Tensor:
    """Concatenates tensors of all ranks along the first dimension, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      name: identifies the operation; None: eager calls are numbered, and calls of a graph are
        identified by the names of function and tensor.

    Returns:
      A new tensor [sum of n, ...].

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: for the same reasons as in
        `allreduce`.
    """
    tensor, name = _ready("allgather", tensor, name, group)

    def gather(array: np.ndarray) -> np.ndarray:
        return herring.allgather(array, name=name, group=group)

    if tf.executing_eagerly():
        return tf.convert_to_tensor(gather(tensor.numpy()))
    result = tf.numpy_function(remember(gather), [tensor], tensor.dtype, stateful=True)
    result.set_shape([None, *tensor.shape[1:]])
    return result


def broadcast_variables(
    variables: Iterable[Any], root: int = 0, *, name: str | None = None, group: Group | None = None
) -> None:
    """Overwrites variables with those of rank `root` (collective; not inside a tf.function).

    Args:
      variables: tf.Variable or keras.Variable of any dtype except strings. Their order, shapes and
        dtypes must be equal on all ranks.
      root: the rank whose values all ranks get; its index inside the group if there is a group.
      name: identifies the operation; None: calls are numbered.

    Raises:
      InvalidArgumentError: called while a function is traced, or with variables of strings.
      PeerLostError, TimeoutError: a rank is gone, or has not called in time.
    """
    if not tf.executing_eagerly():
        raise InvalidArgumentError(
            "broadcast_variables is called while a function is traced; call it before, or after "
            "the first step, from Python"
        )
    listed = list(variables)
    say_copies("herring.tensorflow.broadcast_variables", listed)
    values = [_value(variable.numpy()) for variable in listed]
    name = name or name_of_next("broadcast_variables", group)
    for variable, value in zip(listed, broadcast_values(values, root, name=name, group=group)):
        variable.assign(value)
