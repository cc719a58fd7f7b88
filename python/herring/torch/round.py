"""One round of a gradient reducer: what this rank has produced and sent in it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from herring.errors import HerringError, InvalidArgumentError
from herring.torch.devices import Streams
from herring.torch.engine import runs_last
from herring.torch.layout import FLAGS, STEP_BYTES, Layout
from herring.torch.tensors import warn_once

STEPS_INSIDE = (
    "An optimizer that makes its step inside the backward pass would use this rank's gradients; "
    "make the step after backward()"
)
# The states of a parameter's gradient in a round.
_MISSING, _PRODUCED, _SENT, _SENT_ZEROS = range(4)
_USED = bytes(state == _SENT for state in range(256))  # a table for bytes.translate


class Round:
    """What one rank has seen of a round, from its first gradient to the averages.

    Attributes:
      without: Empty if a backward pass has begun the round. Else why this rank takes part: "pass",
        a backward pass reached no parameter, or "step", the optimizer makes its step.
      failing: Whether this rank's backward pass has raised, or this rank refuses the round.
      refusal: Why this rank cannot take part; None if it can. None of its gradients are sent then.
    """

    def __init__(
        self,
        layout: Layout,
        active: bool,
        *,
        steps: int,
        without: str = "",
        refusal: HerringError | None = None,
    ) -> None:
        self.layout = layout
        self.active = active
        self.steps, self.without = steps, without
        self.failing, self.refusal = False, None
        if refusal is not None:
            self.refuse(refusal)
        self._seen: set[int] = set()  # gradients that autograd has produced
        self._again: set[int] = set()  # gradients that have grown after they were sent
        self._state = bytearray(len(layout.parameters))
        for index in layout.deferred | layout.sparse:
            self._state[index] = _PRODUCED  # sent at the end, whenever it is produced
        self._waiting: list[int] = []  # gradients that are produced and not yet sent
        self._waiting_bytes = 0
        self._streams = Streams()  # the GPU's streams in which gradients are made
        self._repeated: list[int] = []  # gradients accumulated again before the layout is final
        self._lock = threading.Lock()  # gradients on several devices arrive on several threads
        self._versions = [p._version for p in layout.parameters]
        layout.plan.begin(active=active)

    def refuse(self, refusal: HerringError) -> None:
        """Lets the round fail on all ranks, which raise the error of the first rank."""
        self.failing = True
        self.refusal = self.refusal or refusal

    def _check_untouched(self) -> None:
        """Refuses the round if a gradient or a parameter was taken before it was averaged."""
        layout = self.layout
        for index, parameter in enumerate(layout.parameters):
            taken = index in self._seen and parameter.grad is None
            if taken or parameter._version != self._versions[index]:
                what = "its gradient was removed" if taken else "it was changed"
                self.refuse(
                    InvalidArgumentError(
                        f"{layout.options.name}: {what} inside the backward pass, before it was "
                        f"averaged: parameter {layout.names[index]!r}. {STEPS_INSIDE}"
                    )
                )
                return

    def produced(self, index: int) -> None:
        """Handles that autograd has added to the gradient of parameter `index`."""
        state, layout = self._state, self.layout
        if self.refusal is not None:
            return
        self._seen.add(index)
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

        Returns:
          The parameters that no rank has used, and the flags (of `FLAGS`) that some rank has set;
          also "steps" if ranks have made different numbers of steps.
        """
        layout, state = self.layout, self._state
        if self.active:
            if not self.failing:
                self._check_untouched()
            rest = [index for index in layout.order if state[index] < _SENT]
            if not self.failing:
                self._place(rest, last=True)
                for index in layout.sparse:
                    used = layout.parameters[index].grad is not None
                    state[index] = _SENT if used else _SENT_ZEROS
            flags = bytes((bool(self._again), changed, self.failing, bool(self.without)))
            steps = (self.steps % 256**STEP_BYTES).to_bytes(STEP_BYTES, "little")
            others = bytes(255 - byte for byte in steps)
            layout.plan.note(state.translate(_USED) + flags + steps + others)
            layout.ready(rest)
        layout.plan.wait()
        layout.deferred |= self._again
        if not layout.plan.contributors:  # Nobody has given a note.
            return set(range(len(state))), set()
        notes = layout.plan.notes
        used, rest = notes[: len(state)], notes[len(state) :]
        unused = {index for index, by_some in enumerate(used) if not by_some}
        found = {flag for flag, told in zip(FLAGS, rest) if told}
        steps, others = rest[len(FLAGS) : -STEP_BYTES], rest[-STEP_BYTES:]
        if any(largest + other != 255 for largest, other in zip(steps, others)):
            found.add("steps")
        return unused, found

    def learn_order(self) -> list[int]:
        """Returns the order in which gradients became whole, for the final layout.

        Gradients that were accumulated more than once are sent at the end from now on.
        """
        layout = self.layout
        repeated = [index for index in self._repeated if index not in layout.sparse]
        layout.deferred.update(repeated)
        return list(dict.fromkeys(reversed(self._waiting + repeated)))[::-1]
