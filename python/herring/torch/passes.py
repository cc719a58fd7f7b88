"""Ends the rounds of one backward pass in an order in which ranks cannot block each other.

A backward pass may go through several wrapped models, each trained by another group; each model
then has a round to end. Ending a round means waiting for the ranks of its group. If each rank ended
rounds in the order of its own graph, ranks could wait for each other in a circle.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from herring.arrays.groups import Group
from herring.torch.engine import current_pass

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
        self._pass = current_pass()
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
