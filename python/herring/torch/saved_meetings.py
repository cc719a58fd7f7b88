"""What a program saves of training in which ranks meet seldom, and goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from herring.arrays.groups import Group
from herring.arrays.wire import is_packed
from herring.errors import InvalidArgumentError
from herring.torch.fragments import Fragment, MakeOptimizer
from herring.torch.kept import checked_residuals, mean_residuals


class SavesMeetings:
    """The part of `DiLoCo` that saves and loads its state."""

    name: str
    _job: Any
    _count: int
    _delay: int
    _every: int
    _is_behind: bool
    _fragments: list[Fragment]
    _make_outer: MakeOptimizer
    _met: int
    _options: dict[str, Any]
    _since: int
    _steps: int
    _the_group: Group | None
    _tokens: int
    _trained: frozenset[str]
    _unit: float | None

    def _all(self) -> dict[str, torch.Tensor]:
        """Returns the model's parameters and buffers by name."""
        raise NotImplementedError

    @property
    def _under_way(self) -> Fragment | None:
        """The fragment whose meeting has begun and is not yet applied."""
        return next((one for one in self._fragments if one.under_way), None)

    @property
    def _schedule(self) -> str:
        return f"every={self._every}, delay={self._delay}"

    def state_dict(self) -> dict[str, Any]:
        """Returns the outer parameters, the outer optimizers' states and the place in the schedule.

        A rank that goes on needs its own model and inner optimizer, too. With ``alpha=0`` and
        ``delay=0`` all of this but the inner optimizer is equal on all ranks right after a meeting
        of all fragments. Tensors are not copied. If a meeting is under way, it waits for the
        averages, which are then in the state.
        """
        return {
            "schedule": self._schedule,
            "steps": self._steps,
            "since": self._since,
            "meetings": self._met,
            "tokens": self._tokens,
            "unit": self._unit,
            "fragments": [fragment.state() for fragment in self._fragments],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with what `state_dict` has returned. Load the model's own state besides.

        Args:
          state: The state, from the same model with the same number of fragments. Outer parameters,
            and all numbers but those of tokens, must be the same on all ranks.

        Raises:
          InvalidArgumentError: The state is of another model, has another number of fragments, or
            is in the middle of an interval of another schedule; nothing has changed then.
        """
        saved = state["fragments"]
        there = self._all()
        shapes = [
            {
                key: one.shape
                for part in ("parameters", "buffers")
                for key, one in each[part].items()
            }
            for each in saved
        ]
        if saved and len(saved) != self._count:
            raise InvalidArgumentError(
                f"load_state_dict: the state has {len(saved)} fragments, and this "
                f"{type(self).__name__} has {self._count}; make it with fragments={len(saved)}"
            )
        if state["schedule"] != self._schedule and state["steps"] != state["since"]:
            raise InvalidArgumentError(
                f"load_state_dict: the state is inside an interval of {state['schedule']}, and "
                f"this {type(self).__name__} has {self._schedule}; make it with the same, or call "
                "flush() before state_dict()"
            )
        for name, shape in [pair for part in shapes for pair in part.items()]:
            if name not in there or there[name].shape != shape:
                raise InvalidArgumentError(
                    f"load_state_dict: {name!r} of shape {list(shape)} is not in the model; load "
                    "the state of the same model"
                )
        if self._job is not None and shapes != [
            {key: one.shape for key, one in fragment.outer.items()} for fragment in self._fragments
        ]:
            raise InvalidArgumentError(
                "load_state_dict: the state has other parameters in its fragments; load it before "
                "the block begins"
            )
        if self._job is None:
            self._fragments = [
                Fragment(
                    {key: there[key] for key in each["parameters"]},
                    {key: there[key] for key in each["buffers"]},
                    self._make_outer,
                )
                for each in saved
            ]
            self._trained = frozenset(key for each in saved for key in each["parameters"])
        for fragment, each in zip(self._fragments, saved):
            if fragment.under_way:
                fragment.settle()
            fragment.load(each)
        self._steps, self._since = state["steps"], state["since"]
        self._met, self._tokens = state["meetings"], state["tokens"]
        self._unit = state["unit"]

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Goes on from another rank's `state_dict`, in an elastic job whose workers have changed.

        This rank keeps its own parameters if it was at the same meetings. Otherwise it begins at
        the outer parameters when its block begins.
        """
        own = [fragment.meetings for fragment in self._fragments]
        self.load_state_dict(state)
        self._is_behind = own != [fragment.meetings for fragment in self._fragments]

    @property
    def _rounds_to_8_bits(self) -> bool:
        wire = self._options["wire_dtype"]
        return is_packed(wire) and bool(self._options["error_feedback"])

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns what rounding to 8 bits has lost and is still to be sent (collective).

        Save it beside `state_dict`, and give it to `load_residuals` after a restart, when the block
        has begun. Without it, a restart loses what one rounding has lost.

        Returns:
          For each parameter and buffer that meets, the mean over all ranks: a float32 tensor in
          host memory, the same on all ranks. It fits any number of ranks. Empty if nothing travels
          in 8 bits.

        Raises:
          InvalidArgumentError: The block has not begun, or a meeting is under way.
        """
        self._require_rest("residuals()")
        if not self._rounds_to_8_bits:
            return {}
        own: dict[str, torch.Tensor] = {}
        for fragment in self._fragments:
            own.update(fragment.residuals())
        return mean_residuals(own, f"{self.name}.residuals", self._the_group)

    def load_residuals(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues with what `residuals` has returned.

        Args:
          state: The same on all ranks. Parameters that are not in it begin with 0.

        Raises:
          InvalidArgumentError: The block has not begun, a meeting is under way, or a name or a
            shape is wrong; nothing has changed then.
        """
        self._require_rest("load_residuals()")
        if not self._rounds_to_8_bits:
            return
        shapes = {name: o.shape for one in self._fragments for name, o in one.outer.items()}
        workers = self._fragments[0].planned.local_size
        checked = checked_residuals(state, shapes, workers)
        for fragment in self._fragments:
            fragment.give_residuals(checked)

    def _require_rest(self, call: str) -> None:
        if self._job is None or self._under_way is not None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: {call} "
                + (
                    "outside of its block; begin it by 'with' or open()"
                    if self._job is None
                    else "while a meeting is under way; call it `delay` steps later"
                )
            )
