"""Orders a graph's operations: those that wait for collectives follow those that start them.

TensorFlow has few threads for operations, and an operation that waits keeps its thread. If all
threads waited for collectives that other ranks start later, no rank would make progress. So an
operation that waits follows every operation that starts a collective, except operations that need
the result.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf


class _Wait(NamedTuple):
    """An operation that waits, and the names of this operation and all that need its result."""

    operation: Any
    dependents: set[str]


class _Traced:
    """The waits in a graph that is being traced, and their dependents."""

    def __init__(self) -> None:
        self.seen = 0  # The number of operations that were examined.
        self.waits: list[_Wait] = []  # No operation that starts a collective depends on these.

    def look(self, operations: list[Any], start: Any) -> None:
        """Updates the dependents, and drops waits on which an operation with side effects depends.

        When tracing ends, TensorFlow makes operations with side effects follow each other. So any
        operation after one that needs a result may also depend on this result.
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
    """Makes waits follow `operation` where possible; it starts a collective and is the newest."""
    traced = _graphs.setdefault(operation.graph, _Traced())
    traced.look(operation.graph.get_operations(), operation)
    for wait in traced.waits:
        wait.operation._add_control_input(operation)


def note_wait(operation: Any) -> None:
    """Registers an operation that waits for a collective."""
    traced = _graphs.setdefault(operation.graph, _Traced())
    traced.waits.append(_Wait(operation, {operation.name}))
