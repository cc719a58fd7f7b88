"""Copies variables, and sends objects, from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

import herring.tensorflow as plain
from herring.errors import InvalidArgumentError
from herring.horovod.common import objects
from herring.horovod.common.exceptions import NotSupportedError, internal_errors
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in
from herring.horovod.tensorflow.graph import run
from herring.tensorflow.graphs import has_no_order

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]

_INSTEAD = (
    "needs TensorFlow 1's collection of variables, which TensorFlow 2 does not have: use "
    "hvd.broadcast_variables(model.variables, root_rank=0), also for optimizer.variables, or "
    "hvd.callbacks.BroadcastGlobalVariablesCallback(0) of horovod.tensorflow.keras"
)


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Copies variables from one rank to all ranks (collective), also inside a tf.function.

    Args:
      variables: tf.Variable or keras.Variable objects of any dtype but strings. Their order, shapes
        and dtypes must be the same on all ranks.
      inplace: ignored, because values are always assigned in place.

    Returns:
      In a graph of tf.compat.v1, the operation that a Session must run; else None.

    Raises:
      HorovodInternalError: shapes or dtypes differ between ranks, or a rank was lost or did not
        call in time. In a graph, the error is a tf.errors.OpError.
    """
    assigned = _broadcast(list(variables), root_rank, None, process_set)
    return tf.group(*assigned) if has_no_order() else None


def _broadcast(
    listed: list[Any], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Starts or runs the broadcast, and returns the variables with their new values."""
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    if tf.executing_eagerly():
        name = None if name is None else f"horovod.broadcast_variables.{name}"
        with internal_errors():
            plain.broadcast_variables(listed, root, name=name, group=group)
        return listed
    tensors = [tf.convert_to_tensor(one) for one in listed]
    found, _ = run(
        "broadcast_variables",
        lambda starter, *arrays: starter.grouped_broadcast(arrays, root_rank),
        tensors,
        name,
        process_set,
        [(one.dtype, one.shape) for one in tensors],
    )
    return [variable.assign(value) for variable, value in zip(listed, found)]


@tf.autograph.experimental.do_not_convert
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Copies variables from one rank to all ranks (collective), and returns them.

    Args:
      variables: tf.Variable or keras.Variable objects of any dtype but strings. Their order, shapes
        and dtypes must be the same on all ranks.

    Returns:
      A list of the variables. In a graph of tf.compat.v1, a list of tensors; when a Session
      evaluates a tensor, the variable is overwritten.

    Raises:
      HorovodInternalError: shapes or dtypes differ between ranks, or a rank was lost or did not
        call in time. In a graph, the error is a tf.errors.OpError.
    """
    listed = list(variables)
    assigned = _broadcast(listed, root_rank, name, process_set)
    return assigned if has_no_order() else listed


def broadcast_global_variables(root_rank: int) -> None:
    """Raises an error, because TensorFlow 2 has no global variables.

    Raises:
      NotSupportedError: always; the message says what to use instead.
    """
    raise NotSupportedError(f"broadcast_global_variables({root_rank}) {_INSTEAD}")


class BroadcastGlobalVariablesHook:
    """Raises an error, because TensorFlow 2 has no sessions."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Raises NotSupportedError, which says what to use instead."""
        raise NotSupportedError(f"BroadcastGlobalVariablesHook({root_rank}) {_INSTEAD}")


def _require_no_session(session: Any) -> None:
    if session is not None:
        raise InvalidArgumentError(
            f"session is {session!r}; it must be None: TensorFlow 2 sends objects eagerly"
        )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends an object from one rank to all ranks (collective).

    It travels by pickle, so every rank trusts `root_rank`. ``HERRING_OBJECTS=json`` sends only
    what JSON can carry, and ``HERRING_OBJECTS=none`` sends nothing.

    Returns:
      A copy of the root's object; on the root, `obj` itself.
    """
    _require_no_session(session)
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that sends its argument from one rank to all ranks.

    Returns:
      A function of an object, which returns the root's object (see `broadcast_object`).
    """
    _require_no_session(session)
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Sends an object from every rank to all ranks (collective).

    It travels by pickle, so every rank trusts all others. ``HERRING_OBJECTS=json`` sends only
    what JSON can carry, and ``HERRING_OBJECTS=none`` sends nothing.

    Returns:
      A list with the objects of all ranks, in rank order.
    """
    _require_no_session(session)
    return objects.allgather_object(obj, name, process_set)
