"""Gives all ranks the variables of one."""

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
    "needs TensorFlow 1's collection of variables, which TensorFlow 2 has not: use "
    "hvd.broadcast_variables(model.variables, root_rank=0), and of optimizer.variables, or "
    "hvd.callbacks.BroadcastGlobalVariablesCallback(0) of horovod.tensorflow.keras"
)


@tf.autograph.experimental.do_not_convert
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables with those of one rank (collective), also inside a tf.function.

    Args:
      variables: tf.Variable or keras.Variable, any dtype but strings; alike on all ranks, in order.
      root_rank: whose values all get; a rank of the job.
      process_set: who takes part.
      inplace: no meaning: values are always assigned.

    Returns:
      In a graph of tf.compat.v1 the operation that does it when a Session runs it; else None.

    Raises:
      InvalidArgumentError: no such rank in the process set.
      HorovodInternalError: shapes or dtypes differ between ranks; from a graph tf.errors.OpError.
    """
    assigned = _broadcast(list(variables), root_rank, None, process_set)
    return tf.group(*assigned) if has_no_order() else None


def _broadcast(
    listed: list[Any], root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Returns the variables as they are once it is done."""
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
    """Overwrites variables with those of one rank; as `broadcast_variables`.

    Args:
      variables: as of `broadcast_variables`.
      root_rank: as of `broadcast_variables`.
      name: identifies the operation across ranks.
      process_set: as of `broadcast_variables`.

    Returns:
      The variables, as a list. In a graph of tf.compat.v1 what a Session evaluates to overwrite
      each of them.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `broadcast_variables`.
    """
    listed = list(variables)
    assigned = _broadcast(listed, root_rank, name, process_set)
    return assigned if has_no_order() else listed


def broadcast_global_variables(root_rank: int) -> None:
    """Not there: TensorFlow 2 has no global variables.

    Raises:
      NotSupportedError: always; says what to use instead.
    """
    raise NotSupportedError(f"broadcast_global_variables({root_rank}) {_INSTEAD}")


class BroadcastGlobalVariablesHook:
    """Not there: TensorFlow 2 has no sessions."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Raises NotSupportedError, which says what to use instead."""
        raise NotSupportedError(f"BroadcastGlobalVariablesHook({root_rank}) {_INSTEAD}")


def _require_no_session(session: Any) -> None:
    if session is not None:
        raise InvalidArgumentError(
            f"session is {session!r}; it must be None: objects are sent eagerly in TensorFlow 2"
        )


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Hands a picklable object of one rank to all.

    Args:
      obj: read on the root only.
      root_rank: a rank of the job.
      session: None.
      name: identifies the operation across ranks.
      process_set: who takes part.

    Returns:
      The object; on the root the one given.

    Raises:
      InvalidArgumentError: a session is given, or there is no such rank in the process set.
      HorovodInternalError: a rank is gone, or has not come in time.
    """
    _require_no_session(session)
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object that is `broadcast_object` with these options."""
    _require_no_session(session)
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Hands a picklable object of every rank to all.

    Args:
      obj: this rank's.
      session: None.
      name: identifies the operation across ranks.
      process_set: who takes part.

    Returns:
      The objects in rank order.

    Raises:
      InvalidArgumentError: a session is given.
      HorovodInternalError: a rank is gone, or has not come in time.
    """
    _require_no_session(session)
    return objects.allgather_object(obj, name, process_set)
