"""Runs collectives eagerly, and as operations of TensorFlow graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.errors import HerringError, InvalidArgumentError
from herring.horovod.common.handles import Call
from herring.horovod.common.host import Starter
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.tensorflow.errors import tensorflow_errors
from herring.horovod.tensorflow.ordering import note_start, note_wait
from herring.tensorflow.copies import say_copies
from herring.tensorflow.graphs import name_of_use
from herring.tensorflow.xla import refuse_xla

__all__ = ["dense", "run"]

# Results of an operation of a graph that may wait to be asked for: more than iterations of a loop
# run at a time. TensorFlow leaves out what nobody asks for, so older ones are dropped.
_UNASKED = 64


def dense(tensor: Any, kind: str) -> tf.Tensor:
    """The tensor, or what TensorFlow makes one of.

    Raises:
      InvalidArgumentError: it is sparse.
    """
    if isinstance(tensor, (tf.IndexedSlices, tf.SparseTensor)):
        raise InvalidArgumentError(
            f"{kind}: got {type(tensor).__name__}; pass tf.convert_to_tensor(slices), or "
            "allreduce(slices), which takes tf.IndexedSlices"
        )
    return tf.convert_to_tensor(tensor)


def _as_list(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def run(
    kind: str,
    start: Callable[..., Call],
    tensors: Sequence[tf.Tensor],
    name: str | None,
    process_set: ProcessSet,
    results: Sequence[tuple[tf.DType, Any]],
) -> tuple[list[tf.Tensor], str]:
    """Runs a collective, or adds it to the graph that is being traced.

    In a graph it is two operations: one starts it when its tensors are there and those traced
    before have started, and one waits for it, so that others go on. Without a name it has that of
    its first tensor in the graph, which stays the same when a function is traced again. In a graph
    of tf.compat.v1, which has no order, each use of a name is numbered.

    Args:
      kind: Horovod's name of the collective.
      start: called with a `Starter` and arrays; starts it.
      tensors: what is sent.
      name: identifies it across ranks, or None.
      process_set: who takes part.
      results: dtype and shape of each result.

    Returns:
      The results, and a name for what follows, such as its gradient.

    Raises:
      InvalidArgumentError: the function is compiled by XLA, or a collective is in a loop or a
        function inside a graph of tf.compat.v1. From a graph TensorFlow raises its own
        errors, with the text of Herring's.
    """
    say_copies(f"hvd.{kind}", tensors)
    if tf.executing_eagerly():
        starter = Starter(name, process_set)
        with tensorflow_errors():
            call = start(starter, *(tensor.numpy() for tensor in tensors))
            found = [tf.convert_to_tensor(one) for one in _as_list(call.result())]
        return found, call.name.removeprefix("horovod.")
    if name is None:
        name = f"graph.{tensors[0].name}" if tensors else "graph.empty"
    refuse_xla(f"{kind} {name}")
    name = name_of_use(f"{kind}.{name}").removeprefix(f"{kind}.")
    starter = Starter(name, process_set, queues=True)
    calls: dict[int, Call] = {}
    numbers = itertools.count()

    def begin(*arrays: np.ndarray) -> np.int64:
        call, number = start(starter, *arrays), next(numbers)
        calls[number] = call
        calls.pop(number - _UNASKED, None)
        return np.int64(number)

    def end(number: np.ndarray) -> list[np.ndarray]:
        call = calls.pop(int(number), None)
        if call is None:
            raise HerringError(f"{kind} {name}: its result was dropped; {_UNASKED} came after it")
        return _as_list(call.result())

    handle = tf.numpy_function(begin, list(tensors), tf.int64, stateful=True)
    note_start(handle.op)
    if not results:
        return [], f"{kind}.{name}"
    found = tf.numpy_function(end, [handle], [dtype for dtype, _ in results], stateful=False)
    note_wait(found[0].op)
    for one, (_, shape) in zip(found, results):
        one.set_shape(shape)
    return list(found), f"{kind}.{name}"
