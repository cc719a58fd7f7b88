"""Ends the rounds of one backward pass in an order in which ranks cannot block each other.

A backward pass may go through several wrapped models, each trained by another group; each model
then has a round to end. Ending a round means waiting for the ranks of its group. If each rank ended
rounds in the order of its own graph, ranks could wait for each other in a circle.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from herring.arrays.groups import Group

_lock = threading.Lock()
_open: weakref.WeakSet[EndsWithPass] = weakref.WeakSet()


class EndsWithPass:
    """An object that must end something after a backward pass, together with the other ranks."""

    def __init__(self, name: str, group: Group | None) -> None:
        # This key orders all such objects of the job in the same way on every rank.
        self._turn = ((), "", name) if group is None else (group.ranks, group.name, name)
        self._pass = -1

    def _enter_pass(self) -> None:
        """Marks this object as to be ended with the backward pass that is running now."""
        self._pass = torch._C._current_graph_task_id()
        with _lock:
            _open.add(self)

    def _leave_pass(self) -> None:
        with _lock:
            _open.discard(self)

    def _together(self) -> list[Any]:
        """Returns all objects to be ended with this object's pass, itself included, in order."""
        with _lock:
            found = {self, *(one for one in _open if one._pass == self._pass)}
        return sorted(found, key=lambda one: one._turn)

    def _rest_of_pass(self) -> list[str]:
        """Returns the turns of this object, and of those that are to be ended after it, as text."""
        return [str(one._turn) for one in self._together()]


def in_backward() -> bool:
    """Returns whether the calling thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _first_leaf(node: Any) -> Any:
    """Returns a node below `node` that accumulates into a leaf, or None if there is none."""
    seen = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if hasattr(node, "variable"):
            return node
        seen.add(node)
        stack.extend(successor for successor, _ in node.next_functions)
    return None


def accumulates(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Returns whether the running pass adds to `.grad` of leaves, seen from a hook on an output.

    A plain backward pass executes every leaf of its graph, so any leaf tells. With
    `backward(inputs=...)` only one of `parameters` can tell.
    """
    leaf = _first_leaf(torch._C._current_autograd_node())
    ours = (
        torch.autograd.graph.get_gradient_edge(parameter).node
        for parameter in parameters
        if parameter.requires_grad
    )
    leaves = ours if leaf is None else itertools.chain([leaf], ours)
    try:
        return any(map(torch._C._will_engine_execute_node, leaves))
    except RuntimeError:  # torch raises it in autograd.grad with respect to the leaf
        return False
