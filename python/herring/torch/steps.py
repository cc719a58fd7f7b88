"""Keeps together the gradients of one step, also if a rank has none in it.

A rank whose loss depends on no parameter (a batch without targets, for instance) begins no round in
its backward pass, while the other ranks wait for it in theirs. Its next gradients would be averaged
with those of the others' present step. Two things prevent that:

- The rank takes part with zeros, as soon as it is known that its step has no gradients. That is
  after a backward pass that reached no parameter at all, or else when the optimizer makes its step.
- Each rank counts the optimizer's steps and tells the number in every round's note. If the numbers
  differ, all ranks raise an error.

PyTorch has hooks for the steps of all optimizers. It has none for a backward pass that reaches no
parameter, so `torch.autograd.backward` is replaced by a function that calls it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from herring.arrays import runtime
from herring.arrays.groups import Group, scope_of
from herring.torch.compiled import uncompiled, untraced
from herring.torch.engine import in_backward, nodes_below
from herring.torch.ownership import averages
from herring.torch.sparse import average_sparse
from herring.torch.state import broadcast_tensors

_live: weakref.WeakSet[Stepped] = weakref.WeakSet()
_IDLE = 10  # After so many rounds without any gradients, steps show no longer that one is due.
_lock = threading.Lock()
_passes = 0  # Backward passes of this process that have reached a reducer's parameter.


class Stepped:
    """A reducer that knows when optimizers make steps with its parameters."""

    # What the reducer has.
    name: str
    rounds: int
    enabled: bool
    claimed_in: Any
    round_open: bool
    parameters: Sequence[torch.nn.Parameter]
    _mine: set[int]
    _turn: tuple[Any, ...]

    def __init__(self, missing: str | None) -> None:
        # What shows that this rank has no gradients in a step. "forward": a forward pass was not
        # followed by a round. "step": the optimizer's wrapper sees to it, and only a backward pass
        # without any parameter is of interest here. None: nothing, and steps do not count.
        self.missing = missing
        # The number of steps. What optimizers do between two passes counts as one step. Steps
        # before the first round do not count: a rank may make the optimizer's state with one.
        self.steps = 0
        self._moved = False  # Whether an optimizer has made a step since the last pass.
        self._uncovered = False  # Whether a forward pass has not been followed by a round.
        self._reached_nothing = False  # Whether a pass that reached nothing has not been, either.
        self._direct = False  # Whether rounds come without forward passes of the wrapper.
        self._paused = False  # Whether there was a `no_sync` block since the last round.
        self._idle = 0  # The number of latest rounds to which no rank's backward pass has led.
        # The number of rounds at the last step of each optimizer.
        self._rounds_at: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        self._lender: int | None = None
        self._lent: list[int] = []
        follow_passes()
        with _lock:
            _live.add(self)

    # -- what the reducer tells -------------------------------------------------------------------

    def expect(self) -> None:
        """Notes a forward pass whose gradients are to be averaged."""
        self._uncovered = self.enabled

    def _begins_in_pass(self) -> None:
        global _passes
        _passes += 1
        self._direct |= not self._uncovered

    def _passes_by(self) -> None:
        """Notes a backward pass whose gradients stay on this rank."""
        global _passes
        _passes += 1
        self._uncovered = self._reached_nothing = self._moved = False

    def _pauses(self) -> None:
        self._paused = True

    def _round_ended(
        self, told: list[tuple[str, list[str]] | None] | None, used: list[int], without: str
    ) -> None:
        """Notes the end of a round.

        Args:
          told: None if backward passes have led all ranks to the round. Else what each rank has
            said: why it took part without one, or an empty text, and what else its pass ends.
            None for ranks without data.
        """
        self._moved = self._uncovered = self._reached_nothing = self._paused = False
        self._lender, self._lent = None, used
        if told is None:
            self._idle = 0
            return
        reasons = {place: said[0] for place, said in enumerate(told) if said is not None}
        self._idle = self._idle + 1 if all(reasons.values()) else 0
        if "step" in reasons.values():
            self._lender = next((place for place, why in reasons.items() if why != "step"), None)
        if without:
            # The others' pass goes through these models too; rounds end in the order of turns.
            turns = {turn for said in told if said is not None for turn in said[1]}
            others = [
                one for one in list(_live) if str(one._turn) in turns and one._turn > self._turn
            ]
            if others:
                min(others, key=lambda one: one._turn).finish_step(without=without)

    # -- steps ------------------------------------------------------------------------------------

    def _takes_part(self) -> bool:
        return bool(self.parameters) and runtime.is_running(self.claimed_in)

    def awaits_pass(self) -> bool:
        """Returns whether a backward pass without any parameter was this rank's part of a round."""
        if not (self.enabled and self._takes_part()) or self.round_open:
            return False
        return self.missing == "step" or (
            self.missing == "forward" and (self._uncovered or self._direct)
        )

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a round that only this rank has not begun, before an optimizer makes a step."""
        if self.round_open or self.missing is None:
            return
        lent = None
        if self.missing == "forward" and self.enabled and self._lacks_round(optimizer):
            # Before the first round, it is not known whether others call the wrapper or its module.
            if self.rounds and not (self._uncovered or self._direct):
                self.before_forward()
            self.finish_step(without="step")
            lent = self._lent
        self.even_out()
        self._rounds_at[optimizer] = self.rounds
        if self.rounds and not self._moved:
            found = self._gradients(optimizer) if lent is None else lent
            self._moved = any(True for _ in found)
            self.steps += self._moved

    def _lacks_round(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns whether an optimizer is about to make a step without this rank's round for it."""
        shown = self._uncovered or self._reached_nothing
        if self.rounds == self._rounds_at.get(optimizer, 0):
            if shown:
                return True
            # The step is local, or makes the optimizer's state, or nobody trains this model now.
            if self._paused or not self.rounds or self._idle >= _IDLE:
                return False
            if self._direct:
                return True
        elif not shown:
            return False
        # A round since the last step may have been for another model's sake, but not if its
        # gradients are still there. Then the forward pass came after it, for a log. And without
        # any pass, a program that leaves gradients there wants a step with them.
        return not any(map(_has_values, self._gradients(optimizer)))

    def _gradients(self, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        """Yields the gradients of the optimizer's parameters that are averaged here."""
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) in self._mine and p.grad is not None:
                    yield p.grad

    def set_steps(self, steps: int) -> None:
        """Handles that the parameters are those of a rank that has made so many steps."""
        self.steps, self._moved = steps, True

    def even_out(self, *, active: bool = True) -> None:
        """Gives all ranks the gradients of one rank, after a round that some joined late.

        This is collective after such a round, and nothing otherwise. The others may have clipped or
        scaled their gradients since their backward pass, but a rank that has joined in the
        optimizer's step could not.

        Args:
          active: Whether this rank has gradients; a rank without data only takes part.
        """
        lender, self._lender = self._lender, None
        if lender is None:
            return
        group, name = self._scope(), f"{self.name}.lent"
        dense = [self.parameters[index] for index in self._lent if index not in self._sparse()]
        own = [p.grad if active else None for p in dense]
        gradients = [torch.empty_like(p) if one is None else one for p, one in zip(dense, own)]
        broadcast_tensors([one.detach() for one in gradients], lender, name=name, group=group)
        for p, gradient in zip(dense, gradients if active else ()):
            p.grad = gradient
        if rows := [self.parameters[index] for index in sorted(self._sparse())]:
            lends = active and scope_of(group).rank == lender
            found = average_sparse(rows, active=lends, name=f"{name}.rows", group=group)
            for p, row in zip(rows, found if active else ()):
                p.grad = row

    def _scope(self) -> Group | None:
        """Returns the group whose gradients are averaged."""
        raise NotImplementedError

    def _sparse(self) -> set[int]:
        """Returns the indices of the parameters whose gradients are exchanged by rows."""
        raise NotImplementedError

    def before_forward(self) -> None:
        """Takes part in what precedes a forward pass on the other ranks (collective)."""

    def finish_step(self, *, without: str = "pass") -> None:
        """Takes part in a round that this rank's backward pass has not begun (collective)."""
        raise NotImplementedError

    def refuse_step(self) -> None:
        """Refuses the round of the running pass, because an optimizer has made a step inside it."""
        raise NotImplementedError


def _has_values(gradient: torch.Tensor) -> bool:
    if gradient.layout != torch.strided:
        return True
    return bool(gradient.any())


def _owners(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Returns the reducers that average parameters of the optimizer, in the order of all ranks."""
    if not _live:
        return []
    found = [
        one
        for one in list(_live)
        if any(id(p) in one._mine for group in optimizer.param_groups for p in group["params"])
        and one._takes_part()
    ]
    return sorted(found, key=lambda one: one._turn)


def _before_step(
    optimizer: torch.optim.Optimizer, arguments: Any, options: Any
) -> tuple[Any, Any] | None:
    owners = _owners(optimizer)
    if not owners:
        return None
    if in_backward():
        for one in owners:
            one.refuse_step()
        return None
    closure = options.get("closure") or (arguments[1] if len(arguments) > 1 else None)

    def ready() -> None:
        for one in owners:
            one.before_step(optimizer)

    if closure is None:
        ready()
        return None
    averaged = _followed_by(closure, ready)
    if "closure" in options:
        return arguments, {**options, "closure": averaged}
    return (arguments[0], averaged, *arguments[2:]), options


def _followed_by(closure: Callable[[], Any], then: Callable[[], None]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def both() -> Any:
        result = closure()
        then()
        return result

    return both


def _after_pass(roots: Iterable[torch.Tensor]) -> None:
    """Handles that a backward pass has reached no reducer."""
    waiting, unused = [], []
    for one in list(_live):
        if not one.enabled:
            one._uncovered = False  # The pass belongs to `no_sync`.
        elif one.awaits_pass():
            waiting.append(one)
        elif one.missing == "forward":
            unused.append(one)
    if not (waiting or unused) or _reaches_parameter(roots):
        return
    # If several models wait, the optimizer's step shows whose turn it was.
    if len(waiting) == 1:
        waiting[0].finish_step()
    # So it does for models whose forward pass this rank has not made, or has made without their
    # wrapper.
    for one in unused:
        one._reached_nothing = True


def _reaches_parameter(roots: Iterable[torch.Tensor]) -> bool:
    """Returns whether the tensors depend on any parameter, also on one that is not averaged."""
    for node in nodes_below(root.grad_fn for root in roots):
        if isinstance(getattr(node, "variable", None), torch.nn.Parameter):
            return True
    return any(isinstance(root, torch.nn.Parameter) for root in roots)


def follow_passes() -> None:
    """Makes optimizers and backward passes known here, from the first reducer on."""
    with _lock:
        _install()


@functools.cache
def _install() -> None:
    register_optimizer_step_pre_hook(_before_step)
    original = torch.autograd.backward

    @untraced
    def followed(tensors: Any, *arguments: Any, **options: Any) -> None:
        before = _passes
        with uncompiled():
            original(tensors, *arguments, **options)
        partly = len(arguments) > 4 or options.get("inputs") is not None
        if _passes == before and not partly and not in_backward():
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if all(isinstance(root, torch.Tensor) for root in roots):  # No edges of the graph.
                _after_pass(roots)

    @functools.wraps(original)
    def backward(tensors: Any, *arguments: Any, **options: Any) -> None:
        if _live or averages():
            followed(tensors, *arguments, **options)
        else:
            original(tensors, *arguments, **options)

    torch.autograd.backward = backward
