"""What the workers of an elastic job have in common, and give to those that come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import herring
from herring.arrays.arguments import shown
from herring.arrays.objects import allgather_plain, may_pickle
from herring.elastic import running
from herring.elastic.values import broadcast_values
from herring.errors import InvalidArgumentError


class Part:
    """A value of a state that is not sent as it is.

    Attributes:
      is_own: Whether notes are Herring's own, plain data which are never pickled.
    """

    is_own = True

    def begin(self) -> None:
        """Forgets what a step has left that did not end."""

    def note(self) -> Any:
        """Returns what all ranks get from the one that is furthest at each change, as an object."""
        return None

    def take(self, note: Any) -> None:
        """Adopts the note of another rank."""

    def send(self, root: int, name: str) -> None:
        """Gives all ranks what is large as it is on rank `root`, if one lacks it (collective)."""

    def counts_steps(self, step: Callable[[], None]) -> bool:
        """Returns whether the part calls `step` each time the training has made a step."""
        return False

    def stepped(self) -> None:
        """Does what belongs to a step of the training."""


class Stateful(Part):
    """An object with `state_dict` and `load_state_dict`, such as a schedule of learning rates."""

    is_own = False

    def __init__(self, value: Any) -> None:
        self._value = value

    def note(self) -> Any:
        """Returns the object's state."""
        return self._value.state_dict()

    def take(self, note: Any) -> None:
        """Adopts the state of another rank's object."""
        self._value.load_state_dict(note)


class State:
    """What training needs to go on after workers have gone or come.

        state = herring.elastic.State(epoch=0, weights=weights)

        @herring.elastic.run
        def train(state):
            while state.epoch < 10:
                ...
                state.commit()

    Each value is an attribute, which may be set. After each change of the workers, all ranks get
    the values of the rank that is furthest. Values with `state_dict` and `load_state_dict` are sent
    by these. Values are pickled only if ``HERRING_OBJECTS`` allows it. Otherwise they may be plain
    Python data and arrays of NumPy, which are sent as such.
    `herring.torch.State` and `herring.keras.State` send models and optimizers as arrays.
    """

    _values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        """Makes a state of these values.

        Args:
          **values: The values by name; the names must be equal on all ranks.

        Raises:
          InvalidArgumentError: A name begins with an underscore, or is that of a method.
        """
        for name in values:
            if name.startswith("_") or hasattr(type(self), name):
                raise InvalidArgumentError(f"State: {name!r} cannot be the name of a value")
        own = self.__dict__
        own["_values"] = dict(values)
        own["_parts"] = {
            name: part
            for name, value in values.items()
            if (part := self._part_of(name, value)) is not None
        }
        own["_steps"] = -1  # that are in the values; -1: they have never been those of a job
        own["_commits"] = 0  # in the present generation
        own["_functions"] = []
        counting = [part for part in self._parts.values() if part.counts_steps(self._step)]
        own["_counted"] = bool(counting)

    def _part_of(self, name: str, value: Any) -> Part | None:
        """Returns how a value is sent, or None if it is sent with the others as an object."""
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            return Stateful(value)
        return None

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"this State has no value {name!r}; it has {shown(list(values))}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(
                f"this State has no value {name!r}; name all values where it is made, as in "
                f"State({name}=...)"
            )
        if name in self._parts:
            raise AttributeError(f"the value {name!r} of a State cannot be replaced")
        self._values[name] = value

    @property
    def steps(self) -> int:
        """The number of steps that are in the values: of the optimizer, or else commits."""
        return max(self._steps, 0)

    def commit(self) -> None:
        """Says that a step is complete. Workers that have come join here, and others leave here.

        Call it equally often on all ranks, after each step or after each few steps. It costs
        nothing unless somebody comes or leaves. What follows the commit in the loop is not run
        then: `train` is called again.
        """
        if not self._counted:
            self._step()
        self.__dict__["_commits"] += 1
        running.committed(self._commits)

    def on_generation(self, function: Callable[[], None]) -> None:
        """Calls a function on all ranks whenever workers have gone or come, and at the beginning.

        All ranks have the same values then. Use it to fit a learning rate to `herring.size()`.

        Args:
          function: It may call collectives.
        """
        self._functions.append(function)

    def _step(self) -> None:
        self.__dict__["_steps"] = self.steps + 1
        for part in self._parts.values():
            part.stepped()

    def _begin(self) -> None:
        """Makes the values of all ranks equal at the beginning of a generation (collective)."""
        own = self.__dict__
        own["_commits"] = 0
        for part in self._parts.values():
            part.begin()
        names = list(self._values)
        everyone = allgather_plain([self._steps, names], name="herring.elastic.steps")
        for rank, (_, others) in enumerate(everyone):
            if others != names:
                raise InvalidArgumentError(
                    f"State: rank {rank} has the values {shown(others)}, and this rank "
                    f"{shown(names)}; all ranks must name the same ones in the same order"
                )
        steps = [one[0] for one in everyone]
        root = steps.index(max(steps))
        furthest = self._values_of(root)
        if herring.rank() != root:
            for name, value in furthest.items():
                if name in self._parts:
                    self._parts[name].take(value)
                else:
                    self._values[name] = value
        # Workers that have made the same steps have the same parameters.
        if min(steps) < max(steps) or max(steps) < 0:
            for name, part in self._parts.items():
                part.send(root, f"herring.elastic.{name}")
        own["_steps"] = max(steps[root], 0)
        for function in self._functions:
            function()

    def _values_of(self, root: int) -> dict[str, Any]:
        """Returns the values of rank `root`, and the notes of its parts (collective)."""
        plain: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        for name, value in self._values.items():
            part = self._parts.get(name)
            is_own = part is not None and part.is_own
            where = plain if is_own or not may_pickle() else objects
            where[name] = value if part is None else part.note()
        found, others = broadcast_values([plain, bool(objects)], root, name="herring.elastic.notes")
        if others:
            found |= herring.broadcast_object(objects, root, name="herring.elastic.values")
        return found
