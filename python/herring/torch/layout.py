"""The places of gradients in the arenas of a planned reduction, and the rounds over them."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from herring.arrays.calls import called
from herring.arrays.collectives import barrier
from herring.arrays.gradients import PlannedList
from herring.arrays.groups import Group
from herring.arrays.runtime import job
from herring.arrays.wire import is_packed
from herring.errors import HerringError, InvalidArgumentError
from herring.torch import devices
from herring.torch.engine import runs_last
from herring.torch.kept import mean_residuals
from herring.torch.tensors import check_not_capturing, dense_strides, dtype_name, warn_once

# A round's note (the bytes that travel with its gradients) has one byte per parameter, which says
# whether the rank used it. Behind these bytes come flags. "again": a gradient has grown after it
# was sent. "changed": the rank has parameters to average that the plan lacks. "failed": its
# backward pass failed. "without": the rank takes part without a backward pass through the model.
# The bytes of the number of steps, and of its complement, come last. At each place the ranks' notes
# together have the largest byte of any rank, which shows whether the numbers differ.
FLAGS = ("again", "changed", "failed", "without")
STEP_BYTES = 4

# Gradients are copied to their places in batches of at least this many bytes (or a fusion buffer).
# One call then copies many small gradients while each is still in the processor's cache.
_BATCH_BYTES = 256 << 10
# Queueing a copy on a GPU takes as long as moving some 200 kB over its link.
_GPU_BATCH_BYTES = 2 << 20

STEPS_INSIDE = (
    "An optimizer that makes its step inside the backward pass would use this rank's gradients; "
    "make the step after backward()"
)
# The states of a parameter's gradient in a round.
_MISSING, _PRODUCED, _SENT, _SENT_ZEROS = range(4)
_USED = bytes(state == _SENT for state in range(256))  # a table for bytes.translate


class Options(NamedTuple):
    """The options of a `GradientReducer`, which its constructor describes."""

    name: str
    wire_dtype: str | None
    buffer_bytes: int
    sparse: str
    views: bool
    group: Group | None
    divide_by_all: bool
    error_feedback: bool = True


class Layout:
    """A planned reduction over the gradients of `parameters`, and a view of each place.

    A round goes from the first gradient that this rank produces to the averages.

    Attributes:
      parameters: The parameters in registration order. Below, a parameter is its index here.
    """

    active: bool  # whether this rank contributes to the round
    steps: int  # the number of the optimizer's steps on this rank
    # Empty if a backward pass has begun the round. Else why this rank takes part: "pass", a
    # backward pass reached no parameter, or "step", the optimizer makes its step.
    without: str
    told: bool  # whether the other ranks have all that this rank contributes
    failing: bool  # whether this rank's backward pass has raised, or this rank refuses the round
    # Why this rank cannot take part; None if it can. None of its gradients are sent then.
    refusal: HerringError | None

    def __init__(
        self,
        options: Options,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        sparse: Collection[int],
        order: Sequence[int],
        *,
        name: str,
    ) -> None:
        """Makes the plan (collective; same arguments on every rank); `name` is the operation's."""
        self.options = options
        self.names, self.parameters = names, parameters
        # The parameters that have a place, in the order in which gradients are produced.
        self.order = list(order)
        self.sparse = set(sparse)  # the other parameters, whose gradients are exchanged by rows
        # Parameters that are known to accumulate more than once in a pass.
        self.deferred: set[int] = set()
        self.found: set[int] = set()  # parameters whose gradients were sparse and were made dense
        # Whether the order was recorded. Until then gradients are sent after the pass.
        self.final = False
        self.hooks: list[Any] = []
        # The GPU on which all parameters, and so the arenas, are; None means host memory.
        self.gpu = devices.common_gpu(parameters[i] for i in order)
        self._devices = [p.device for p in parameters]
        # Those whose gradients torch copies to host memory.
        self._copied = [p for p in parameters if p.is_cuda] if self.gpu is None else []
        self._warn_of_copies()
        self.plan = PlannedList(
            [(p.numel(), dtype_name(p.dtype)) for p in parameters],
            self.order,
            name=name,
            op="average",
            wire_dtype=options.wire_dtype,
            buffer_bytes=options.buffer_bytes,
            group=options.group,
            note_bytes=len(parameters) + len(FLAGS) + 2 * STEP_BYTES,
            device=self.gpu,
            divide_by_all=options.divide_by_all,
            error_feedback=options.error_feedback,
        )
        if self.plan.on_devices:
            meets = f"{name}.arenas"
            with called("barrier", meets, options.group):  # a GPU may lack the memory
                arenas = self._arenas(order)
            barrier(name=meets, group=options.group)
        else:
            arenas = self._arenas(order)
        # The place of each parameter, empty if it has none. A view has the parameter's shape and
        # dtype, and gap-free strides in the parameter's dimension order. Only this package uses the
        # views. Users get aliases, because `module.to()` and similar calls point existing gradient
        # tensors to other memory.
        self.views: list[torch.Tensor] = [torch.empty(0, device="cpu")] * len(parameters)
        for index, place in self.plan.cut(arenas).items():
            self.views[index] = self._shaped(index, place.view(parameters[index].dtype))
        self._addresses = [view.data_ptr() for view in self.views]
        self._aliases = [view.detach() for view in self.views]
        self._dtypes = [p.dtype for p in parameters]
        self.nbytes = [p.numel() * p.element_size() for p in parameters]
        batch_bytes = _BATCH_BYTES if self.gpu is None else _GPU_BATCH_BYTES
        self.batch_bytes = min([batch_bytes, *(size for _, _, size in self.plan.buffers[:-1])])

    def _warn_of_copies(self) -> None:
        there = {str(self._devices[index]) for index in self.order}
        if len(there) > 1 and any(self.parameters[index].is_cuda for index in self.order):
            warn_once(
                f"devices {self.options.name}",
                f"herring.torch: parameters of {self.options.name!r} are on "
                f"{' and '.join(sorted(there))}, so torch copies gradients of GPUs to host memory "
                "and back, and waits for each; give each worker one GPU",
            )

    def _arenas(self, order: Sequence[int]) -> list[torch.Tensor]:
        """Returns the plan's arenas as bytes; they own their memory as long as a view lives."""
        plan = self.plan
        if self.gpu is None:
            return [torch.from_numpy(plan.arena(i)) for i in range(len(plan.arenas))]
        device = self.parameters[order[0]].device
        arenas = [
            torch.empty(nbytes, dtype=torch.uint8, device=device) for _, nbytes in plan.arenas
        ]
        plan.place([devices.exported(arena) for arena in arenas])
        return arenas

    def in_order(self, produced: Sequence[int], sparse: Collection[int], name: str) -> Layout:
        """Returns the final layout (collective): first the order `produced`, then the others."""
        order = dict.fromkeys([*produced, *range(len(self.parameters) - 1, -1, -1)])
        final = [index for index in order if index not in sparse]
        layout = self
        if final != self.order:
            lost = self.movable_residuals(name)
            self.close()  # .grad does not use the arena before the final layout
            layout = type(self)(self.options, self.names, self.parameters, sparse, final, name=name)
            layout.give_residuals(lost)
            layout.deferred, layout.hooks = self.deferred, self.hooks
        layout.final = True
        return layout

    @property
    def rounds_to_8_bits(self) -> bool:
        """Whether rounding loses something that the next round makes up for."""
        return is_packed(self.options.wire_dtype) and self.options.error_feedback

    def residuals(self) -> dict[int, torch.Tensor]:
        """Returns what rounding has lost on this rank, in the shapes of the parameters."""
        if not self.rounds_to_8_bits:
            return {}
        return {
            index: self._shaped(index, torch.from_numpy(values))
            for index, values in self.plan.residuals().items()
        }

    def movable_residuals(self, name: str) -> dict[int, torch.Tensor]:
        """Returns what this rank takes over into another layout (collective).

        Another plan cuts other slices, so another rank of a node may send what this one keeps.
        Where ranks share nodes, all nodes therefore get the same parts of what all have kept.
        """
        own = self.residuals()
        nodes = job().num_nodes
        if nodes == 1 or nodes == job().size:
            return own
        means = mean_residuals(
            {str(index): values for index, values in own.items()},
            f"{name}.residuals",
            self.options.group,
        )
        return {int(index): mean * self.plan.local_size for index, mean in means.items()}

    def give_residuals(self, residuals: Mapping[int, torch.Tensor]) -> None:
        """Replaces what rounding has lost on this rank; what is missing becomes 0."""
        if not self.rounds_to_8_bits:
            return
        places = {
            index: torch.empty(self.parameters[index].numel(), dtype=torch.float32, device="cpu")
            for index in residuals
        }
        for index, values in residuals.items():
            self._shaped(index, places[index]).copy_(values)
        self.plan.set_residuals({index: place.numpy() for index, place in places.items()})

    def _shaped(self, index: int, place: torch.Tensor) -> torch.Tensor:
        """Returns a place, which is flat, in the parameter's shape and order of dimensions."""
        parameter = self.parameters[index]
        return place.as_strided(
            parameter.shape, dense_strides(parameter.detach()), place.storage_offset()
        )

    def close(self) -> None:
        """Ends the plan and releases its memory; views that others hold stay readable."""
        self.plan.close()
        self.views, self._aliases = [], []

    def holds(self, index: int, gradient: torch.Tensor) -> bool:
        """Returns whether `gradient` is in the place of parameter `index`."""
        view = self.views[index]
        return (
            gradient.layout == torch.strided
            and gradient.data_ptr() == self._addresses[index]
            and gradient.dtype == view.dtype
            and gradient.stride() == view.stride()
        )

    def reaches(self, index: int) -> bool:
        """Returns whether `.grad` may be the parameter's place, which must be on its device."""
        return self.parameters[index].device == self.views[index].device

    def prepare(self) -> None:
        """Moves gradients out of the arena before a round.

        The caller tells the other ranks of an error, which wait for this one in the round.

        Raises:
          InvalidArgumentError: A parameter's dtype has changed since the plan was made, or it has
            left the GPU on which the plan was made. Or a CUDA graph is being captured.
        """
        now = [parameter.dtype for parameter in self.parameters]
        if now != self._dtypes:
            name, before, after = next(
                one for one in zip(self.names, self._dtypes, now) if one[1] != one[2]
            )
            raise InvalidArgumentError(
                f"parameter {name!r} was {dtype_name(before)} when {self.options.name!r} was made "
                f"and is {dtype_name(after)} now; convert the model first"
            )
        if self.gpu is not None:
            self._require_there()
        elif self._copied:
            check_not_capturing(self._copied, self.options.name)
        if self.options.views and self.final:
            for index in self.order:
                gradient = self.parameters[index].grad
                if gradient is not None and self.holds(index, gradient):
                    self.parameters[index].grad = gradient.clone()

    def _require_there(self) -> None:
        for index in self.order:
            before, now = self._devices[index], self.parameters[index].device
            if now != before:
                raise InvalidArgumentError(
                    f"parameter {self.names[index]!r} was on {before} when {self.options.name!r} "
                    f"was made and is on {now} now; move the model first, or close() the wrapper "
                    "and make a new one"
                )

    # -- a round ----------------------------------------------------------------------------------

    def begin(
        self, active: bool, *, steps: int, without: str = "", refusal: HerringError | None = None
    ) -> None:
        """Begins a round, in which this rank has the gradients of so many steps."""
        self.active = active
        self.steps, self.without = steps, without
        self.failing, self.refusal = False, None
        self.told = False
        if refusal is not None:
            self.refuse(refusal)
        self._seen: set[int] = set()  # gradients that autograd has produced
        self._again: set[int] = set()  # gradients that have grown after they were sent
        self._state = bytearray(len(self.parameters))
        for index in self.deferred | self.sparse:
            self._state[index] = _PRODUCED  # sent at the end, whenever it is produced
        self._waiting: list[int] = []  # gradients that are produced and not yet sent
        self._waiting_bytes = 0
        self._streams = devices.Streams()  # the GPU's streams in which gradients are made
        self._repeated: list[int] = []  # gradients accumulated again before the layout is final
        self._lock = threading.Lock()  # gradients on several devices arrive on several threads
        self._versions = [p._version for p in self.parameters]
        self.plan.begin(active=active)

    def refuse(self, refusal: HerringError) -> None:
        """Lets the round fail on all ranks, which raise the error of the first rank."""
        self.failing = True
        self.refusal = self.refusal or refusal

    def _check_untouched(self) -> None:
        """Refuses the round if a gradient or a parameter was taken before it was averaged."""
        for index, parameter in enumerate(self.parameters):
            taken = index in self._seen and parameter.grad is None
            if taken or parameter._version != self._versions[index]:
                what = "its gradient was removed" if taken else "it was changed"
                self.refuse(
                    InvalidArgumentError(
                        f"{self.options.name}: {what} inside the backward pass, before it was "
                        f"averaged: parameter {self.names[index]!r}. {STEPS_INSIDE}"
                    )
                )
                return

    def produced(self, index: int) -> None:
        """Handles that autograd has added to the gradient of parameter `index`."""
        state = self._state
        if self.refusal is not None:
            return
        self._seen.add(index)
        if state[index] == _MISSING:
            state[index] = _PRODUCED
            self._waiting.append(index)
            if self.gpu is not None:
                self._streams.join(self.parameters[index])
            self._waiting_bytes += self.nbytes[index]
            # A user's hook that comes after this one may still change or replace the gradient. The
            # gradient is then taken at the end of the pass, and from the next pass on this hook
            # comes last.
            if (
                self._waiting_bytes >= self.batch_bytes
                and self.final
                and runs_last(self.parameters[index], self.hooks[index])
            ):
                with self._lock:
                    batch, self._waiting = self._waiting, []
                    self._waiting_bytes = 0
                    self.plan.filled(self._place(batch))
        elif state[index] == _SENT:
            self._again.add(index)
        elif not self.final:
            self._repeated.append(index)

    def _place(self, indices: Sequence[int], *, last: bool = False) -> list[int]:
        """Copies gradients to their places; a None gradient becomes zeros if `last` is set."""
        sources: dict[int, torch.Tensor] = {}  # gradients, none of which is in the arena
        empty: list[int] = []
        for index in indices:
            gradient = self.parameters[index].grad
            if gradient is not None:
                dense = gradient.layout == torch.strided
                sources[index] = gradient if dense else self._dense(index, gradient)
            elif last:  # otherwise a user's hook has removed the gradient
                empty.append(index)
        with torch.no_grad():
            if sources:
                torch._foreach_copy_([self.views[i] for i in sources], list(sources.values()))
            if empty:
                torch._foreach_zero_([self.views[i] for i in empty])
        for index in sources:
            self._state[index] = _SENT
        for index in empty:
            self._state[index] = _SENT_ZEROS
        return [*sources, *empty]

    def _dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        options, name = self.options, self.names[index]
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
        self.found.add(index)
        return gradient.to_dense()

    def finish(self, *, changed: bool = False) -> tuple[set[int], set[str]]:
        """Sends the remaining gradients and waits for the averages.

        Returns:
          The parameters that no rank has used, and the flags (of `FLAGS`) that some rank has set;
          also "steps" if ranks have made different numbers of steps.
        """
        state = self._state
        if self.active and not self.told:  # otherwise a wait was interrupted, and goes on
            if not self.failing:
                self._check_untouched()
            rest = [index for index in self.order if state[index] < _SENT]
            if not self.failing:
                self._place(rest, last=True)
                for index in self.sparse:
                    used = self.parameters[index].grad is not None
                    state[index] = _SENT if used else _SENT_ZEROS
            flags = bytes((bool(self._again), changed, self.failing, bool(self.without)))
            steps = (self.steps % 256**STEP_BYTES).to_bytes(STEP_BYTES, "little")
            complement = bytes(255 - byte for byte in steps)
            self.plan.note(state.translate(_USED) + flags + steps + complement)
            self.plan.filled(rest)
        self.told = True
        self.plan.wait()
        self.deferred |= self._again
        if not self.plan.contributors:  # Nobody has given a note.
            return set(range(len(state))), set()
        notes, flags_from = self.plan.notes, len(state)
        steps_from = flags_from + len(FLAGS)
        unused = {index for index in range(flags_from) if not notes[index]}
        found = {flag for flag, told in zip(FLAGS, notes[flags_from:steps_from]) if told}
        largest, others = notes[steps_from:-STEP_BYTES], notes[-STEP_BYTES:]
        if any(one + other != 255 for one, other in zip(largest, others)):
            found.add("steps")
        return unused, found

    def learn_order(self) -> list[int]:
        """Returns the order in which gradients became whole, for the final layout.

        Gradients that were accumulated more than once are sent at the end from now on.
        """
        repeated = [index for index in self._repeated if index not in self.sparse]
        self.deferred.update(repeated)
        return list(dict.fromkeys(reversed(self._waiting + repeated)))[::-1]

    def show(self, unused: set[int], averages: dict[int, torch.Tensor | None]) -> None:
        """Makes `.grad` of all parameters the averages; `averages` has those without a place."""
        options = self.options
        gradients = [parameter.grad for parameter in self.parameters]
        targets: list[Any] = []
        sources: list[torch.Tensor] = []
        if not (unused or averages or options.views) and all(map(_plain, gradients)):
            targets, sources = gradients, self.views
        else:
            for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients)):
                view = self.views[index]
                if index in averages:
                    parameter.grad = averages[index]
                elif index in unused:
                    parameter.grad = None
                elif options.views and self.final and self.reaches(index):
                    if not self.holds(index, self._aliases[index]):
                        self._aliases[index] = view.detach()
                    parameter.grad = self._aliases[index]
                elif _plain(gradient):
                    targets.append(gradient)
                    sources.append(view)
                else:
                    average = view.to(parameter.device, copy=True)
                    if gradient is not None and gradient.is_sparse and options.sparse == "keep":
                        average = average.to_sparse(gradient.sparse_dim())
                    parameter.grad = average
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


def _plain(gradient: torch.Tensor | None) -> bool:
    """Returns whether an average may be written to this gradient's own memory."""
    return (
        gradient is not None
        and gradient.layout == torch.strided
        and not gradient.requires_grad
        and 0 not in gradient.stride()  # expanded: its elements share memory
    )
