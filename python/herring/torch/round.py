"""One round of a gradient reducer: what this rank has produced and sent in it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from herring.errors import HerringError, InvalidArgumentError
from herring.torch.devices import Streams
from herring.torch.layout import FLAGS, Layout
from herring.torch.ownership import runs_last
from herring.torch.tensors import warn_once

# The states of a parameter's gradient in a round.
_MISSING, _PRODUCED, _SENT, _SENT_ZEROS = range(4)
_USED = bytes(state == _SENT for state in range(256))  # a table for bytes.translate


class Round:
    """What one rank has seen of a round, from its first gradient to the averages.

    Attributes:
      layout: The layout of the gradients.
      active: Whether this rank contributes.
      failing: Whether this rank's backward pass has raised, or this rank refuses the round.
      refusal: Why this rank cannot take part; None if it can. None of its gradients are sent then.
    """

    def __init__(self, layout: Layout, active: bool, refusal: HerringError | None = None) -> None:
        self.layout = layout
        self.active = active
        self.failing = refusal is not None
        self.refusal = refusal
        self._again: set[int] = set()  # gradients that have grown after they were sent
        self._state = bytearray(len(layout.parameters))
        for index in layout.deferred | layout.sparse:
            self._state[index] = _PRODUCED  # sent at the end, whenever it is produced
        self._waiting: list[int] = []  # gradients that are produced and not yet sent
        self._waiting_bytes = 0
        self._streams = Streams()  # the GPU's streams in which gradients are made
        self._repeated: list[int] = []  # gradients accumulated again before the layout is final
        self._lock = threading.Lock()  # gradients on several devices arrive on several threads
        layout.plan.begin(active=active)

    def produced(self, index: int) -> None:
        """Handles that autograd has added to the gradient of parameter `index`."""
        state, layout = self._state, self.layout
        if self.refusal is not None:
            return
        if state[index] == _MISSING:
            state[index] = _PRODUCED
            self._waiting.append(index)
            if layout.gpu is not None:
                self._streams.join(layout.parameters[index])
            self._waiting_bytes += layout.nbytes[index]
            # A user's hook that comes after this one may still change or replace the gradient. The
            # gradient is then taken at the end of the pass, and from the next pass on this hook
            # comes last.
            if (
                self._waiting_bytes >= layout.batch_bytes
                and layout.final
                and runs_last(layout.parameters[index], layout.hooks[index])
            ):
                with self._lock:
                    batch, self._waiting = self._waiting, []
                    self._waiting_bytes = 0
                    layout.ready(self._place(batch))
        elif state[index] == _SENT:
            self._again.add(index)
        elif not layout.final:
            self._repeated.append(index)

    def _place(self, indices: Sequence[int], *, last: bool = False) -> list[int]:
        """Copies gradients to their places; a None gradient becomes zeros if `last` is set.

        Returns:
          The parameters whose places are filled.
        """
        layout = self.layout
        sources: dict[int, torch.Tensor] = {}  # gradients, none of which is in the arena
        empty: list[int] = []
        for index in indices:
            gradient = layout.parameters[index].grad
            if gradient is not None:
                dense = gradient.layout == torch.strided
                sources[index] = gradient if dense else self._dense(index, gradient)
            elif last:  # otherwise a user's hook has removed the gradient
                empty.append(index)
        with torch.no_grad():
            if sources:
                torch._foreach_copy_([layout.views[i] for i in sources], list(sources.values()))
            if empty:
                torch._foreach_zero_([layout.views[i] for i in empty])
        for index in sources:
            self._state[index] = _SENT
        for index in empty:
            self._state[index] = _SENT_ZEROS
        return [*sources, *empty]

    def _dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        options, name = self.layout.options, self.layout.names[index]
        if options.sparse == "error":
            raise InvalidArgumentError(
                f"parameter {name!r} has a sparse gradient, but sparse='error' was "
                "given; build its module with sparse=False, or pass sparse='keep' or 'densify'"
            )
        if options.sparse == "densify":
            warn_once(
                "sparse",
                "herring.torch: sparse gradients are made dense before they are averaged, as "
                f"sparse='densify' asks for (first seen in {name!r})",
            )
        self.layout.found.add(index)
        return gradient.to_dense()

    def finish(self, *, changed: bool = False) -> tuple[set[int], set[str]]:
        """Sends the remaining gradients and waits for the averages.

        Args:
          changed: Whether this rank has parameters that the plan lacks.

        Returns:
          The parameters that no rank has used, and the flags (of `FLAGS`) that some rank has set.
        """
        layout, state = self.layout, self._state
        if self.active:
            rest = [index for index in layout.order if state[index] < _SENT]
            if not self.failing:
                self._place(rest, last=True)
                for index in layout.sparse:
                    used = layout.parameters[index].grad is not None
                    state[index] = _SENT if used else _SENT_ZEROS
            flags = (bool(self._again), changed, self.failing)
            layout.plan.note(state.translate(_USED) + bytes(flags))
            layout.ready(rest)
        layout.plan.wait()
        layout.deferred |= self._again
        notes = layout.plan.notes
        used = notes[: len(state)]
        unused = {index for index, by_some in enumerate(used) if not by_some}
        return unused, {flag for flag, told in zip(FLAGS, notes[len(state) :]) if told}

    def learn_order(self) -> list[int]:
        """Returns the order in which gradients became whole, for the final layout.

        Gradients that were accumulated more than once are sent at the end from now on.
        """
        layout = self.layout
        repeated = [index for index in self._repeated if index not in layout.sparse]
        layout.deferred.update(repeated)
        return list(dict.fromkeys(reversed(self._waiting + repeated)))[::-1]
