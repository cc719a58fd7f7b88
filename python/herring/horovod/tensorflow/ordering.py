"""Has operations of a graph that wait for collectives do so after all those that start some.

TensorFlow has few threads for operations, and one that waits keeps its thread. If all of them
waited, each for a collective that another rank starts later, nobody would go on. So an operation
that waits follows every one that starts a collective, but for those that need its result.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

__all__ = ["note_start", "note_wait"]


class _Wait(NamedTuple):
    """An operation that waits, and the names of those that need its result, itself among them."""

    operation: Any
    dependents: set[str]


class _Traced:
    """What is known of a graph that is being traced."""

    def __init__(self) -> None:
        self.seen = 0  # operations that were looked at
        self.waits: list[_Wait] = []  # that nothing which starts a collective depends on

    def look(self, operations: list[Any], start: Any) -> None:
        """Notes what depends on what, and gives up waits on which more than values depend.

        TensorFlow has operations with an effect follow each other when tracing ends. What comes
        after one that needs a result may therefore need it too.
        """
        for one in operations[self.seen :]:
            needs = {tensor.op.name for tensor in one.inputs}
            needs.update(other.name for other in one.control_inputs)
            has_effect = one is start or _has_effect(one)
            kept = []
            for wait in self.waits:
                if not needs.isdisjoint(wait.dependents):
                    if has_effect:
                        continue
                    wait.dependents.add(one.name)
                kept.append(wait)
            self.waits = kept
        self.seen = len(operations)


_graphs: weakref.WeakKeyDictionary[Any, _Traced] = weakref.WeakKeyDictionary()


def _has_effect(operation: Any) -> bool:
    definition = operation.op_def
    return (
        definition is None
        or definition.is_stateful
        or any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.inputs)
    )


def note_start(operation: Any) -> None:
    """Has waits that can follow this operation, which starts a collective; it is the newest."""
    traced = _graphs.setdefault(operation.graph, _Traced())
    traced.look(operation.graph.get_operations(), operation)
    for wait in traced.waits:
        wait.operation._add_control_input(operation)


def note_wait(operation: Any) -> None:
    """Notes an operation that waits for a collective."""
    traced = _graphs.setdefault(operation.graph, _Traced())
    traced.waits.append(_Wait(operation, {operation.name}))
