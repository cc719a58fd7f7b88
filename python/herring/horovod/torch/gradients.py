"""Averages the gradients of a `DistributedOptimizer` in rounds, or tensor by tensor.

All classes count backward passes for each parameter. A gradient is averaged when its parameter has
received `backward_passes_per_step` gradients; another gradient before the step is an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from herring.arrays import runtime
from herring.errors import HerringError
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.handles import Call
from herring.horovod.common.process_sets import ProcessSet, group_of
from herring.horovod.common.starter import Reduction
from herring.horovod.torch.compiled import untraced
from herring.horovod.torch.starts import Starter
from herring.partial import RoundInfo
from herring.torch.engine import current_pass
from herring.torch.naming import Named
from herring.torch.partial import PartialReducer, RoundOptions
from herring.torch.reducer import GradientReducer


class _Counts:
    """Counts the gradients that each parameter has received since the last step."""

    def __init__(self, passes: int) -> None:
        self.passes = passes
        self.exceeded = False  # A gradient that was not averaged was added to one that was.
        self._counts: dict[int, int] = {}
        self._hooks: list[Any] = []
        self._job = runtime.job()

    def watch(self, named: Named, produced: Callable[[str, torch.nn.Parameter, int], None]) -> None:
        """Calls `produced(name, parameter, count)` whenever a parameter receives a gradient."""
        for name, parameter in named:
            if parameter.requires_grad:
                self._hooks.append(
                    parameter.register_post_accumulate_grad_hook(self._hook(name, produced))
                )

    def _hook(
        self, name: str, produced: Callable[[str, torch.nn.Parameter, int], None]
    ) -> Callable[[torch.nn.Parameter], None]:
        @untraced  # torch.compile would also trace what a backward pass inside it calls
        def hook(parameter: torch.nn.Parameter) -> None:
            if not runtime.is_running(self._job):
                return  # Another wrapper may average this parameter in the next job.
            count = self._counts.get(id(parameter), 0) + 1
            if count > self.passes:
                self.exceeded = True
                raise AssertionError(
                    f"parameter {name!r} received {count} gradients since the last step(), and "
                    f"backward_passes_per_step is {self.passes}: gradients were computed more than "
                    "backward_passes_per_step times before step(); give DistributedOptimizer a "
                    "larger backward_passes_per_step to accumulate"
                )
            self._counts[id(parameter)] = count
            produced(name, parameter, count)

        return hook

    def clear(self) -> None:
        self.exceeded = False
        self._counts.clear()

    def __bool__(self) -> bool:
        return bool(self._counts)

    def retire(self) -> None:
        for hook in self._hooks:
            hook.remove()


class _Reducer(GradientReducer):
    """A GradientReducer that raises Horovod's errors, also in backward passes."""

    def _finish(self) -> None:
        with internal_errors():
            super()._finish()


class PlannedGradients:
    """Averages gradients in planned rounds while the backward pass runs.

    A round averages all parameters' gradients, and runs during the last backward pass of a step.
    The previous step shows which pass that is; in the first step it is number
    `backward_passes_per_step`. `synchronize` averages gradients that were produced after a round or
    without one. Averaging averages again, together with what was added to them, gives the correct
    result.

    Args:
      relist: returns the current parameters if they may have changed, else None.
    """

    def __init__(
        self,
        named: Named,
        *,
        name: str,
        passes: int,
        sums: bool,
        wire_dtype: str | None,
        densify: bool,
        sparse: Sequence[torch.nn.Parameter],
        process_set: ProcessSet,
        relist: Callable[[], Named | None],
    ) -> None:
        self._counts = _Counts(passes)
        self._sums = sums
        self._pass = -1  # torch's number of the last backward pass.
        self._number = 0  # Backward passes since the last step.
        self._last = passes  # The expected number of backward passes in a step.
        self._watch(named)
        self._reducer = _Reducer(
            named,
            name=name,
            wire_dtype=wire_dtype,
            sparse="densify" if densify else "keep",
            sparse_parameters=sparse,
            relist=relist,
            group=group_of(process_set),
            divide_by_all=rounds.joined_as_zeros(),
        )
        self._rounds = self._reducer.rounds  # Its value when the last backward pass began.
        self._complete = False
        rounds.reducers.add(self._reducer)

    def _watch(self, named: Named) -> None:
        myself = weakref.ref(self)

        def produced(*_: Any) -> None:
            if (gradients := myself()) is not None:
                gradients._produced()

        self._counts.watch(named, produced)

    def _produced(self) -> None:
        running = current_pass()
        if running == self._pass:
            return
        self._pass = running
        self._number += 1
        reducer = self._reducer
        if not reducer.round_open:
            reducer.enabled = self._number == self._last
            self._complete = reducer.enabled
            self._rounds = reducer.rounds

    @property
    def pending(self) -> bool:
        """Whether there are gradients that were not synchronized."""
        reducer = self._reducer
        if reducer.given_up and reducer.rounds > self._rounds:
            self._start_anew()  # The round was given up, so no step will follow.
        return bool(self._counts)

    @property
    def broken(self) -> bool:
        """Whether a backward pass raised an exception in the middle of a round."""
        return self._reducer.round_open

    def synchronize(self) -> None:
        """Completes the averages or sums in `.grad` (collective unless the round has ended)."""
        reducer = self._reducer
        with internal_errors():
            if reducer.round_open:
                self.give_up()
                raise HerringError(
                    f"{reducer.name}: step() after a backward pass that raised; the step is given "
                    "up on all ranks, and gradients were cleared"
                )
            ended = self._complete and reducer.rounds > self._rounds
            if not ended or self._counts.exceeded:
                reducer.enabled = True
                reducer.finish_step()
        if self._sums:
            self._multiply(reducer.contributors)
        # A step that ended early does not lower the number expected for the next step.
        self._last = max(self._number, self._counts.passes)
        self._start_anew()

    def _multiply(self, factor: int) -> None:
        gradients = [p.grad for p in self._reducer.parameters if p.grad is not None]
        dense = [one for one in gradients if one.layout == torch.strided]
        with torch.no_grad():
            if dense:
                torch._foreach_mul_(dense, float(factor))
            for one in gradients:
                if one.layout != torch.strided:
                    one.mul_(factor)

    def _start_anew(self) -> None:
        self._counts.clear()
        self._number = 0
        self._pass = -1
        self._complete = False

    def give_up(self) -> None:
        """Gives up, on all ranks, a step whose backward pass raised an exception."""
        self._reducer.abandon()
        self._start_anew()

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes per step."""
        self._counts.passes = self._last = passes

    def adopt(self, named: Named, new: Named) -> None:
        """Also averages the parameters in `new` from now on (collective)."""
        self._watch(new)
        self._reducer.adopt(named)

    def retire(self) -> None:
        """Removes the hooks after the job has ended."""
        self._counts.retire()
        self._reducer.retire()
        rounds.reducers.discard(self._reducer)


class TensorGradients:
    """Averages each gradient with an operation of its own, for compressors of the caller."""

    def __init__(
        self,
        named: Named,
        *,
        name: str,
        passes: int,
        op: int,
        scales: tuple[float, float],
        compression: Any,
        densify: bool,
        process_set: ProcessSet,
    ) -> None:
        group_of(process_set)
        self._named = list(named)
        self._name = name
        self._counts = _Counts(passes)
        self._how, self._process_set = Reduction(op, *scales), process_set
        self._compression = compression
        self._densify = densify
        self._calls: dict[int, tuple[Call, Any]] = {}
        self._watch(named)

    def _watch(self, named: Named) -> None:
        myself = weakref.ref(self)

        def produced(name: str, parameter: torch.nn.Parameter, count: int) -> None:
            if (gradients := myself()) is not None and count == gradients._counts.passes:
                gradients._start(name, parameter)

        self._counts.watch(named, produced)

    def _start(self, name: str, parameter: torch.nn.Parameter) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        starter = Starter(f"{self._name}.{name}", self._process_set)
        if parameter.grad.layout != torch.strided:
            if not self._densify:
                call = starter.sparse_allreduce(parameter.grad, self._how.op)
                self._calls[id(parameter)] = call, None
                return
            parameter.grad = parameter.grad.to_dense()
        sent, context = self._compression.compress(parameter.grad.detach())
        self._calls[id(parameter)] = starter.allreduce(sent, self._how), context

    @property
    def pending(self) -> bool:
        """Whether there are gradients that were not synchronized."""
        return bool(self._counts)

    @property
    def broken(self) -> bool:
        """False, because each tensor is averaged independently."""
        return False

    def synchronize(self) -> None:
        """Completes the averages or sums in `.grad` (collective)."""
        for name, parameter in self._named:
            if parameter.requires_grad and id(parameter) not in self._calls:
                self._start(name, parameter)
        calls, self._calls = self._calls, {}
        self._counts.clear()
        failed: Exception | None = None
        for _, parameter in self._named:
            call, context = calls.get(id(parameter), (None, None))
            if call is None:
                continue
            try:
                found = call.result()
            except HerringError as error:
                failed = failed or error
                continue
            if found.layout == torch.strided:
                found = self._compression.decompress(found, context)
                if parameter.grad is not None:
                    parameter.grad.detach().copy_(found.view_as(parameter.grad))
                    continue
                found = found.view_as(parameter)
            parameter.grad = found
        if failed is not None:
            raise failed

    def give_up(self) -> None:
        """Does nothing, because each tensor is averaged independently."""

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes per step."""
        self._counts.passes = passes

    def adopt(self, named: Named, new: Named) -> None:
        """Also averages the parameters in `new` from now on."""
        self._named = list(named)
        self._watch(new)

    def retire(self) -> None:
        """Removes the hooks after the job has ended."""
        self._counts.retire()


class RoundGradients:
    """Contributes gradients to rounds that do not wait for all ranks (docs/partial.md)."""

    def __init__(
        self,
        named: Named,
        *,
        name: str,
        passes: int,
        options: RoundOptions,
    ) -> None:
        self._counts = _Counts(passes)
        self._counts.watch(named, lambda *_: None)
        self.reducer = PartialReducer(named, name=name, options=options)
        rounds.partial.add(self.reducer)

    @property
    def pending(self) -> bool:
        """Whether there are gradients that were not contributed."""
        return bool(self._counts)

    def steps(self) -> Iterator[RoundInfo]:
        """Contributes this step's gradients; yields for each round whose result is in `.grad`."""
        self._counts.clear()
        with internal_errors():
            yield from self.reducer.steps()

    def flush(self) -> Iterator[RoundInfo]:
        """Ends the series; yields for each round whose result is in `.grad`."""
        self._counts.clear()
        with internal_errors():
            yield from self.reducer.flush()

    def abandon(self, stacklevel: int) -> bool:
        """Gives up a step whose backward pass raised an exception; returns whether one did."""
        raised = self.reducer.abandon(stacklevel + 1)
        if raised:
            self._counts.clear()
        return raised

    def drop_overflow(self) -> bool:
        """Gives up a step that `GradScaler` has skipped; returns whether it has."""
        dropped = self.reducer.drop_overflow()
        if dropped:
            self._counts.clear()
        return dropped

    def set_passes(self, passes: int) -> None:
        """Sets the number of backward passes per step."""
        self._counts.passes = passes

    def retire(self) -> None:
        """Removes the hooks after the job has ended."""
        self._counts.retire()
        self.reducer.retire()
