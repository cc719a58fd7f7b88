"""Names the operations of a graph alike on all ranks.

TensorFlow executes the stateful operations of a `tf.function` in the order in which they were
traced. It executes a graph of `tf.compat.v1` in any order, which may differ between ranks. So
operations in such a graph are identified by their names in the graph, and operations that one run
may execute several times are refused.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from herring.errors import InvalidArgumentError

_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # by graph


def has_no_order() -> bool:
    """Returns whether the graph that is being built is a `tf.compat.v1` graph for a Session."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def name_of_use(name: str) -> str:
    """Returns a name that tells apart the operations of one name in a graph of `tf.compat.v1`.

    All ranks must build the same graph in the same order.

    Args:
      name: the name of an operation that is being added to the graph.

    Returns:
      In a tf.function `name` itself. In a graph of `tf.compat.v1` `name` with the
      number of its use.

    Raises:
      InvalidArgumentError: the operation is in a function or a loop in such a graph, where it may
        be executed several times in one run, in any order.
    """
    if not has_no_order():
        return name
    graph = tf.compat.v1.get_default_graph()
    if isinstance(graph, FuncGraph):
        raise InvalidArgumentError(
            f"{name} is inside a function ({graph.name}: a tf.function, tf.while_loop or tf.cond) "
            "in a graph of tf.compat.v1. TensorFlow may execute it several times in one "
            "Session.run, in a different order on each rank. Call it outside of the function, "
            "or run the program without tf.compat.v1 graphs: eagerly or in a tf.function"
        )
    context = graph._get_control_flow_context()
    loop = None if context is None else context.GetWhileContext()
    if loop is not None and loop.parallel_iterations != 1:
        raise InvalidArgumentError(
            f"{name} is inside a tf.compat.v1.while_loop with parallel_iterations="
            f"{loop.parallel_iterations}. TensorFlow may execute iterations in a different order "
            "on each rank; pass parallel_iterations=1, or use a tf.function"
        )
    return _numbered(graph, name)


def name_in_graph(kind: str, tensor: tf.Tensor) -> str:
    """Returns a name for an operation, made of its place in the graph that is being built.

    Nothing is counted beyond one trace, because a rank may trace again alone. The n-th execution
    meets the n-th execution on the other ranks.
    """
    graph = tensor.graph
    while isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        graph = graph.outer_graph
    base = f"{kind}.{getattr(graph, 'name', 'graph')}.{tensor.name}"
    return name_of_use(base) if has_no_order() else _numbered(graph, base)


def _numbered(graph: Any, name: str) -> str:
    counts = _passed.setdefault(graph, Counter())
    number = counts[name]
    counts[name] += 1
    return f"{name}#{number}" if number else name
