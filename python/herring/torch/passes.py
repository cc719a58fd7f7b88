"""Rounds that end with the same backward pass, in an order in which ranks cannot block each other.

A pass through several wrapped models, each trained by another group, has one round to end for each.
To end one is to wait for the ranks of its group; were each rank to take them as its own graph has
them, ranks could wait for each other in a circle.
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
    """What has something to end, together with the other ranks, after a backward pass."""

    def __init__(self, name: str, group: Group | None) -> None:
        # One order of all there are in the job, which is the same on every rank.
        self._turn = ((), "", name) if group is None else (group.ranks, group.name, name)
        self._pass = -1

    def _enter_pass(self) -> None:
        """It is to end with the backward pass now running."""
        self._pass = torch._C._current_graph_task_id()
        with _lock:
            _open.add(self)

    def _leave_pass(self) -> None:
        with _lock:
            _open.discard(self)

    def _together(self) -> list[Any]:
        """All that are to end with the pass of this one, itself among them, in turn."""
        with _lock:
            found = {self, *(one for one in _open if one._pass == self._pass)}
        return sorted(found, key=lambda one: one._turn)


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _first_leaf(node: Any) -> Any:
    """Some node without successors below `node` that accumulates into a leaf, or None."""
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
    """Whether the pass now running, seen from a hook on an output, adds to `.grad` of leaves.

    A plain backward pass executes every leaf of its graph, so any leaf tells; with
    `backward(inputs=...)` it takes one of `parameters`.
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
    except RuntimeError:  # how torch says that this is autograd.grad, with respect to the leaf
        return False
