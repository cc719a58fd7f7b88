"""Rounds that end with the same backward pass, in an order in which ranks cannot block each other.

A pass through several wrapped models, each trained by another group, has one round to end for each.
To end one is to wait for the ranks of its group; were each rank to take them as its own graph has
them, ranks could wait for each other in a circle.
"""

from __future__ import annotations

import threading
import weakref
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
