"""Runs collectives eagerly, or adds them to TensorFlow graphs as operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from herring.arrays.runtime import is_elastic
from herring.errors import HerringError, InvalidArgumentError
from herring.horovod.common.handles import Call
from herring.horovod.common.host import Starter
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.tensorflow.errors import tensorflow_errors
from herring.horovod.tensorflow.ordering import note_start, note_wait
from herring.tensorflow.copies import say_copies
from herring.tensorflow.graphs import has_no_order, name_of_use
from herring.tensorflow.ops import after, remember
from herring.tensorflow.xla import refuse_xla

# The number of results of one operation in a graph that are kept until they are fetched. It exceeds
# the number of loop iterations that run at the same time. TensorFlow never fetches results that no
# operation uses, so older results are dropped.
_UNASKED = 64


def lasts() -> bool:
    """Returns whether a function is being traced that may outlive its generation of the job."""
    return is_elastic() and not tf.executing_eagerly() and not has_no_order()


def now(number: Callable[[], int]) -> Any:
    """Returns a number of the present job, such as its size.

    In a function that may outlive the job, it is a tensor with the number at execution time.
    """
    if not lasts():
        return number()
    found = tf.numpy_function(lambda: np.int32(number()), [], tf.int32, stateful=True)
    found.set_shape([])
    return found


def dense(tensor: Any, kind: str) -> tf.Tensor:
    """Converts a value to a dense tensor."""
    if isinstance(tensor, (tf.IndexedSlices, tf.SparseTensor)):
        raise InvalidArgumentError(
            f"{kind}: got {type(tensor).__name__}; pass tf.convert_to_tensor(slices), or "
            "allreduce(slices), which takes tf.IndexedSlices"
        )
    return tf.convert_to_tensor(tensor)


def _array(tensor: Any) -> Any:
    """Returns a value of a tensor as an array; a string without dimensions comes as bytes."""
    return np.asarray(tensor, object) if isinstance(tensor, (bytes, str)) else tensor


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

    In a graph, a collective consists of two operations that call Python, so that other operations
    run meanwhile. The first starts the collective when its tensors are ready and all collectives
    traced before have started. The second returns the result. A native operation between them
    waits, and keeps none of TensorFlow's threads; without it, the second one waits. Without a name,
    the collective has the name of its first tensor in the graph, which stays the same when a
    function is traced again. A graph of tf.compat.v1 has no order, so each use of a name is
    numbered there.

    Returns:
      The results, and a name from which to derive names, for example the gradient's.

    Raises:
      InvalidArgumentError: XLA compiles the function, or the collective is in a loop or a function
        inside a graph of tf.compat.v1. When a graph runs, TensorFlow raises its own errors, which
        contain Herring's message.
    """
    say_copies(f"hvd.{kind}", tensors)
    if tf.executing_eagerly():
        starter = Starter(name, process_set)
        with tensorflow_errors():
            call = start(starter, *(_array(tensor.numpy()) for tensor in tensors))
            found = [tf.convert_to_tensor(one) for one in _as_list(call.result())]
        return found, call.name.removeprefix("horovod.")
    if name is None:
        name = f"graph.{tensors[0].name}" if tensors else "graph.empty"
    refuse_xla(f"{kind} {name}")
    name = name_of_use(f"{kind}.{name}").removeprefix(f"{kind}.")
    starter = Starter(name, process_set, queues=True)
    calls: dict[int, Call] = {}
    numbers = itertools.count()

    @remember
    def begin(*arrays: np.ndarray) -> np.int64:
        call, number = start(starter, *map(_array, arrays)), next(numbers)
        if not results:
            call.result()  # nothing follows in the graph that would wait for an empty list
            return np.int64(number)
        calls[number] = call
        calls.pop(number - _UNASKED, None)
        return np.int64(number)

    def wait(arrays: list[np.ndarray]) -> None:
        if (call := calls.get(int(arrays[0]))) is not None:
            call.wait()

    @remember
    def end(number: np.ndarray) -> list[np.ndarray]:
        call = calls.pop(int(number), None)
        if call is None:
            raise HerringError(f"{kind} {name}: the result was dropped after {_UNASKED} later ones")
        return _as_list(call.result())

    handle = tf.numpy_function(begin, list(tensors), tf.int64, stateful=True)
    note_start(handle.op)
    if not results:
        return [], f"{kind}.{name}"
    done = after(wait, handle)
    found = tf.numpy_function(end, [done], [dtype for dtype, _ in results], stateful=False)
    note_wait(found[0].op)
    for one, (_, shape) in zip(found, results):
        one.set_shape(shape)
    return list(found), f"{kind}.{name}"
