"""What a reducer has planned, and what one of its rounds has seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from herring.errors import InvalidArgumentError
from herring.torch.ownership import release, runs_last
from herring.torch.slots import GradientSlots
from herring.torch.tensors import dtype_name, warn_once

# What has become of a parameter's gradient in this round.
_MISSING, _PRODUCED, _SENT, _SENT_ZEROS = range(4)
_USED = bytes(state == _SENT for state in range(256))  # a table for bytes.translate

# Gradients are copied to their places in batches of at least this many bytes (or a fusion buffer):
# one call for many small ones, while each is still in the processor's cache.
_BATCH_BYTES = 256 << 10


def _plain(gradient: torch.Tensor | None) -> bool:
    """Whether an average may be written into this gradient's own memory."""
    return gradient is not None and gradient.layout == torch.strided and not gradient.requires_grad


class Layout:
    """What was planned for a list of parameters; replaced when a reducer plans for another list.

    Attributes:
      listed: the named parameters it was made of, frozen ones among them.
      parameters, names: those that are averaged.
      sparse: indices of those whose gradients are exchanged by rows.
      seen_sparse: indices of those that have had a sparse gradient made dense.
      deferred: indices of those known to accumulate more than once.
      slots: their plan; None without parameters, and once ended.
      final: it is the plan in rank 0's order of production.
      removals: the handles of the parameters' hooks.
    """

    def __init__(
        self,
        name: str,
        listed: Sequence[tuple[str, torch.nn.Parameter]],
        names: list[str],
        parameters: list[torch.nn.Parameter],
        sparse: set[int],
        *,
        mode: str,
        views: bool,
    ) -> None:
        """Lists them; `name` is the reducer's, `mode` and `views` are its `sparse` and `views`."""
        self.name = name
        self.listed = listed
        self.names, self.parameters = names, parameters
        self.sparse = sparse
        self.mode, self.views = mode, views
        self.seen_sparse: set[int] = set()
        self.deferred: set[int] = set()
        self.slots: GradientSlots | None = None
        self.final = False
        self.removals: list[Any] = []
        self._frozen = [p for _, p in listed if not p.requires_grad]
        self._dtypes = [p.dtype for p in parameters]
        self.nbytes = [p.numel() * p.element_size() for p in parameters]
        self.batch_bytes = _BATCH_BYTES

    def settle(self, slots: GradientSlots) -> None:
        """Makes `slots` the final plan."""
        self.slots = slots
        self.batch_bytes = min([_BATCH_BYTES, *(size for _, _, size in slots.plan.buffers)])
        self.final = True

    def end(self, owner: Any) -> None:
        """Removes the hooks, gives back what `owner` has claimed and ends the plan."""
        for handle in self.removals:
            handle.remove()
        self.removals = []
        release(self.parameters, owner)
        if self.slots is not None:
            self.slots.close()
            self.slots = None

    def lacks(self, listed: list[tuple[str, torch.nn.Parameter]] | None) -> bool:
        """Whether there are parameters to average that it lacks; `listed` if the list is new."""
        if listed is not None:
            self.listed = listed
            mine = {id(p) for p in self.parameters}
            self._frozen = [p for _, p in listed if id(p) not in mine]
        return any(p.requires_grad and p.numel() for p in self._frozen)

    def prepare(self) -> None:
        """Checks the dtypes, and takes `.grad` out of the arena, for a round to come."""
        if [parameter.dtype for parameter in self.parameters] != self._dtypes:
            for name, dtype, parameter in zip(self.names, self._dtypes, self.parameters):
                if parameter.dtype != dtype:
                    raise InvalidArgumentError(
                        f"parameter {name!r} was {dtype_name(dtype)} when {self.name!r} was made "
                        f"and is {dtype_name(parameter.dtype)} now; convert the model first"
                    )
        for index in self.slots.order if self.views and self.final else ():
            gradient = self.parameters[index].grad
            if gradient is not None and self.slots.holds(index, gradient):
                self.parameters[index].grad = gradient.clone()

    def dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        """A sparse gradient as a dense one, if that is not refused."""
        if self.mode == "error":
            raise InvalidArgumentError(
                f"parameter {self.names[index]!r} has a sparse gradient, and sparse='error' was "
                "asked for; build its module with sparse=False, or pass sparse='keep' or 'densify'"
            )
        if self.mode == "densify":
            warn_once(
                "sparse",
                "herring.torch: sparse gradients are made dense before they are averaged, as "
                f"sparse='densify' asks for (first seen in {self.names[index]!r})",
            )
        self.seen_sparse.add(index)
        return gradient.to_dense()

    def show(self, unused: set[int], averages: dict[int, torch.Tensor | None]) -> None:
        """Makes `.grad` of all parameters the averages."""
        slots = self.slots
        gradients = [parameter.grad for parameter in self.parameters]
        if not (unused or averages or self.views) and all(map(_plain, gradients)):
            with torch.no_grad():
                torch._foreach_copy_(gradients, slots.views)
            return
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for index, parameter in enumerate(self.parameters):
            gradient = gradients[index]
            if index in averages:
                parameter.grad = averages[index]
            elif index in unused:
                parameter.grad = None
            elif self.views and self.final and slots.reaches(parameter):
                parameter.grad = slots.alias(index)
            elif _plain(gradient):
                targets.append(gradient)
                sources.append(slots.views[index])
            else:
                average = slots.views[index].to(parameter.device, copy=True)
                if gradient is not None and gradient.is_sparse and self.mode == "keep":
                    average = average.to_sparse(gradient.sparse_dim())
                parameter.grad = average
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


class Round:
    """What one step has seen of a layout's gradients; replaced each step.

    Attributes:
      active: this rank contributes.
      failing: its backward pass has raised.
      again: indices of gradients that have grown after they were sent.
    """

    def __init__(self, layout: Layout, lock: threading.RLock, *, active: bool) -> None:
        """Begins a round of the plan; `lock` is held while gradients are sent."""
        self.active = active
        self.failing = False
        self.again: set[int] = set()
        self._layout = layout
        self._lock = lock
        self._state = bytearray(len(layout.parameters))
        for index in layout.deferred | layout.sparse:
            self._state[index] = _PRODUCED  # sent at the end, whenever they are produced
        self._waiting: list[int] = []  # produced, and not yet sent
        self._waiting_bytes = 0
        self._repeated: list[int] = []  # first round: accumulated once more
        layout.slots.plan.begin(active=active)

    def produced(self, index: int) -> None:
        """Notes that a gradient is there; sends those that wait once they are enough."""
        state, layout = self._state, self._layout
        if state[index] == _MISSING:
            state[index] = _PRODUCED
            self._waiting.append(index)
            self._waiting_bytes += layout.nbytes[index]
            # A user's hook that comes after ours may still change or replace the gradient, which is
            # then taken at the end of the pass; from the next pass on ours comes after it.
            if (
                self._waiting_bytes >= layout.batch_bytes
                and layout.final
                and runs_last(layout.parameters[index], layout.removals[index])
            ):
                with self._lock:
                    batch, self._waiting = self._waiting, []
                    self._waiting_bytes = 0
                    self._send(batch)
        elif state[index] == _SENT:
            self.again.add(index)
        elif not layout.final:
            self._repeated.append(index)

    def _send(self, indices: Sequence[int], *, last: bool = False) -> None:
        """Puts gradients in their places and reports them; one that is None only at the `last`."""
        layout = self._layout
        chosen: list[int] = []
        gradients: list[torch.Tensor | None] = []
        for index in indices:
            gradient = layout.parameters[index].grad
            if gradient is None:
                if not last:
                    continue  # a hook of the user's has taken it away
            elif gradient.layout != torch.strided:
                gradient = layout.dense(index, gradient)
            chosen.append(index)
            gradients.append(gradient)
        layout.slots.fill(chosen, gradients)
        layout.slots.ready(chosen)
        for index, gradient in zip(chosen, gradients):
            self._state[index] = _SENT_ZEROS if gradient is None else _SENT

    def complete(self, changed: Callable[[], bool] = bool) -> None:
        """Sends what is left, says what this rank has to say, and waits for the averages.

        Args:
          changed: whether this rank has parameters to average that the plan lacks.
        """
        layout, slots, state = self._layout, self._layout.slots, self._state
        if self.active:
            rest = [i for i in slots.order if state[i] < _SENT]
            if self.failing:
                slots.ready(rest)
            else:
                self._send(rest, last=True)
                for index in layout.sparse:
                    used = layout.parameters[index].grad is not None
                    state[index] = _SENT if used else _SENT_ZEROS
            slots.report(
                state.translate(_USED),
                again=bool(self.again),
                changed=not self.failing and changed(),
                failed=self.failing,
            )
        slots.plan.wait()

    def order(self) -> list[int]:
        """A first round's order of production; notes what is to wait for the end from now on."""
        produced = dict.fromkeys(self._waiting)
        repeated = [i for i in self._repeated if i not in self._layout.sparse]
        for index in repeated:
            produced.pop(index, None)
            produced[index] = None
        self._layout.deferred.update(repeated)
        return list(produced)
