"""Eager SGD: training in rounds that do not wait for all workers (partial collectives, section 5).

A rank contributes the gradients of a step as one array when the backward pass has ended, or by
buffer while it runs. Every rank applies the results of all rounds in order, including rounds that
it missed. Replicas therefore never differ, and no gradient is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from herring.arrays.arguments import Operator, count_of, text_of
from herring.arrays.groups import Group
from herring.errors import HerringError, InvalidArgumentError
from herring.partial import (
    Quorum,
    Replay,
    RoundInfo,
    RoundStatistics,
)
from herring.partial.reduction import RESULTS, check_results, wants_rounds
from herring.torch.compiled import untraced
from herring.torch.engine import at_end_of_pass, current_pass
from herring.torch.ownership import release
from herring.torch.ranges import each_shown
from herring.torch.reducer import Listing, Relist
from herring.torch.round_buffer import RoundBuffer, split
from herring.torch.steps import follow_passes
from herring.torch.tensors import TorchWireDType, wire_dtype_name


class PartialReducer(Listing):
    """Contributes gradients to rounds and writes the results of rounds to `.grad`.

    Without `buffer_bytes` all gradients are one array, in one series: whole updates, which are
    contributed after the backward pass. With it each buffer has a series of its own, and is
    contributed during the pass, as soon as its gradients are there.

    Arrays have the wire dtype if there is one, else float64 if any parameter is float64, else
    float32. Ranks may be at different rounds of a series, so the list of parameters is fixed while
    a series runs. All ranks begin it together, and then take those that require gradients.

    With results="latest" a rank that was late applies the newest result only, so replicas differ
    until they are averaged: after every `synchronize_every` rounds, and at the end.

    Attributes:
      contributors: The number of workers whose gradients are in the last result.
      statistics: The statistics of the first buffer, which has the gradients of the last layers.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        options: RoundOptions,
        relist: Relist | None = None,
    ) -> None:
        """Compares the parameters across ranks (collective).

        Args:
          named_parameters: Names and parameters. Empty and repeated ones are left out, and frozen
            ones are left out until a series begins in which they require gradients.
          name: The reducer's name, the same on every rank and different for each reducer.
          relist: As for `GradientReducer`; None means that no parameter is ever replaced.
        """
        super().__init__(named_parameters, name=name, relist=relist)
        follow_passes()
        self.contributors = 0
        self.statistics = RoundStatistics()
        self._options = options
        self._synchronized = 0  # how often replicas were averaged within series
        self._ends = False  # whether they are to be averaged because a series has ended
        self._parameters: Sequence[torch.nn.Parameter] = ()
        self._hooks: list[Any] = []
        self._generation = 0
        self._buffers: list[RoundBuffer] = []
        self._runs = False  # whether a series is under way
        self._pass: int | None = None  # the backward pass that runs, or the last one if it raised
        self._pending = False  # whether gradients wait to be contributed
        self._open()

    @property
    def rounds(self) -> int:
        """The number of rounds, of the first buffer, whose results this rank has seen.

        Unless results="latest", ranks with equal numbers have equal parameters in this buffer.
        """
        return self._buffers[0].rounds if self._buffers else 0

    @property
    def open(self) -> bool:
        """Whether a series is under way: it was begun, and has not been flushed."""
        return self._runs

    def _open(self) -> None:
        """Begins a series if none is under way (collective in that case)."""
        if self._runs:
            return
        try:
            self._set_up()
            for index, buffer in enumerate(self._buffers):
                buffer.open(
                    sync=self._options.sync,
                    name=f"{self.name}.rounds{self._generation}" + (f".{index}" if index else ""),
                    statistics=RoundStatistics() if index else self.statistics,
                    group=self._options.group,
                    algorithm=self._options.algorithm,
                    results=self._options.results,
                    op=self._options.op,
                )
        except BaseException:
            self.close()
            raise
        self._generation += 1
        self._runs = True

    def _set_up(self) -> None:
        """Lays out the arrays for the parameters that require gradients now (collective)."""
        self._has_changed()  # lists them again
        given = self._options
        options = (
            f"sync={given.sync!r} digest_every={given.digest_every} results={given.results} "
            f"synchronize_every={given.synchronize_every} wire_dtype={given.wire} "
            f"buffer_bytes={given.buffer_bytes}"
        )
        _, parameters = self._agree(options, self.name, given.group)
        self.close()
        self._take_over(parameters)
        self._parameters = parameters
        double = any(p.dtype == torch.float64 for p in parameters)
        self._wide = torch.float64 if double else torch.float32
        dtype = self._wide if given.wire is None else getattr(torch, given.wire)
        rounds = self.rounds
        self._buffers = [
            RoundBuffer(part, dtype, rounds)
            for part in split(parameters, given.buffer_bytes, dtype.itemsize)
        ]
        self._hooks = [
            self._hook(parameter, index)
            for index, buffer in enumerate(self._buffers)
            for parameter in buffer.parameters
        ]

    def _hook(self, parameter: torch.nn.Parameter, index: int) -> Any:
        myself = weakref.ref(self)  # the garbage collector does not see the engine's hooks

        @untraced  # torch.compile would also trace what a backward pass inside it calls
        def hook(parameter: torch.Tensor) -> None:
            if (reducer := myself()) is not None and reducer.enabled:
                reducer._produced()
                if reducer._options.buffer_bytes and reducer._runs:
                    reducer._produced_in(reducer._buffers[index], parameter)

        return parameter.register_post_accumulate_grad_hook(hook)

    def _produced(self) -> None:
        running = current_pass()
        if self._pass != running:
            self._pass = running
            # The engine calls this only if the pass does not raise.
            at_end_of_pass(self._passed)

    def _produced_in(self, buffer: RoundBuffer, parameter: torch.nn.Parameter) -> None:
        if buffer.sent:
            raise InvalidArgumentError(
                f"{self.name}: a gradient was produced again after it was contributed with "
                f"buffer_bytes={self._options.buffer_bytes}; make all backward passes of a step "
                "but the last one inside no_sync(), and checkpoints with use_reentrant=False, or "
                "leave buffer_bytes out"
            )
        buffer.produced(parameter)

    def _passed(self) -> None:
        self._pass = None
        self._pending = True

    def before_forward(self) -> None:
        """Gives up a backward pass that raised; the other ranks need not know.

        Raises:
          InvalidArgumentError: Gradients wait to be contributed, or a parameter was unfrozen or
            replaced.
        """
        self.abandon(stacklevel=6)  # points past Module.__call__
        if self._runs:
            self._require_unchanged()
        if self._pending and self.enabled:
            raise InvalidArgumentError(
                f"{self.name}: the gradients of the last backward pass were not exchanged; with "
                "sync=... follow it by 'for _ in model.rounds(): optimizer.step()'"
            )

    def abandon(self, stacklevel: int) -> bool:
        """Clears gradients if the last backward pass raised, with a warning; returns whether."""
        raised = self._give_up()
        if raised:
            warnings.warn(
                f"{self.name}: the last backward pass raised an error; this rank gave its step up, "
                "and gradients were cleared",
                stacklevel=stacklevel + 1,
            )
        return raised

    def _give_up(self) -> bool:
        """Returns whether the last backward pass raised; if so, clears gradients."""
        raised = self._pass is not None
        if raised:
            self._clear()
        return raised

    def drop_overflow(self) -> bool:
        """Clears gradients that wait and are not finite; returns whether there were any.

        `GradScaler` has skipped their step on this rank. The other ranks need not know.
        """
        overflows = self._pending and any(
            parameter.grad is not None and not parameter.grad.to_dense().isfinite().all()
            for parameter in self._parameters
        )
        if overflows:
            self._clear()
        return overflows

    def _clear(self) -> None:
        self._pass = None
        self._pending = False
        for buffer in self._buffers:
            buffer.restart()
        for _, parameter in self._listed:
            parameter.grad = None

    def _require_unchanged(self, *, idle: bool = False) -> None:
        """Raises InvalidArgumentError if parameters require gradients that the series lacks."""
        if not self._has_changed():
            return
        added = {
            name: parameter
            for name, parameter in self._listed
            if id(parameter) not in self._mine and parameter.requires_grad and parameter.numel()
        }
        if idle and all(parameter.grad is None for parameter in added.values()):
            return
        self._clear()
        self._refuse(self._strange(added.keys(), added.values()))
        raise InvalidArgumentError(
            f"{self.name}: parameter {next(iter(added))!r} was frozen when this series of rounds "
            "began, so nothing averages it. Freeze it again, or flush() on all ranks, unfreeze it "
            "on all, and go on: the next series averages it. Gradients were cleared on this rank"
        )

    def _synchronize(self) -> None:
        """Averages the replicas as often as is due (collective).

        Every rank comes by every multiple of `synchronize_every`, however many results it drops, so
        all ranks make equally many averages.
        """
        every = self._options.synchronize_every
        due = self.rounds // every if every else 0
        while self._synchronized < due:
            self._average("synchronize")
            self._synchronized += 1
        if self._ends:
            self._average("end")
            self._ends = False

    def _average(self, what: str) -> None:
        """Gives the mean over all ranks to the parameters of the series (collective)."""
        for buffer in self._buffers:
            buffer.average(f"{self.name}.{what}", self._wide, self._options.group)

    def steps(self) -> Iterator[RoundInfo]:
        """Contributes this step's gradients and writes one result after the other to `.grad`.

        If this rank missed rounds, their results come first, and nothing is waited for. Otherwise
        this rank waits for the next round.

        Yields:
          What is known about the round. Apply `.grad` before asking for the next round.
        """
        if self._give_up():
            raise HerringError(
                f"{self.name}: the last backward pass raised an error; this rank gave its step up, "
                "and gradients were cleared"
            )
        self._synchronize()  # what a loop that was left early owes
        self._open()
        self._require_unchanged()
        if self._options.buffer_bytes:
            yield from self._shown(self._rounds_of_buffers())
        else:
            yield from self._shown(self._rounds_of_updates())

    def _rounds_of_updates(self) -> Iterator[None]:
        """Lets rounds have whole updates: results that were missed are applied first."""
        [buffer] = self._buffers
        buffer.gather()
        before, _ = buffer.series.contributions
        self._pending = False
        try:
            with contextlib.closing(buffer.series.step(buffer.given, buffer.mean)) as infos:
                for buffer.info in infos:
                    yield
        finally:  # a result that this rank owed may not have come in time
            self._pending = buffer.series.contributions[0] == before

    def _rounds_of_buffers(self) -> Iterator[None]:
        """Lets each buffer have rounds of its own.

        This rank waits until each buffer has had a result in this step. While it does, it counts as
        waiting in every buffer in which no round has ended since it contributed. So ranks that wait
        for different buffers do not wait for each other.
        """
        for buffer in self._buffers:
            if not buffer.sent:
                buffer.gather()  # before `.grad` gets a result
        contributed = False
        try:
            for buffer in self._buffers:
                if buffer.series.owes and not buffer.sent and buffer.info is None:
                    buffer.take()  # of the step before
            if any(buffer.info for buffer in self._buffers):
                yield
            self._contribute()
            contributed = True
            while True:
                for buffer in self._buffers:
                    if buffer.info is None and (buffer.series.ready or not buffer.delivered):
                        buffer.take()
                if not any(buffer.info for buffer in self._buffers):
                    return
                yield
        except GeneratorExit:
            if not contributed:
                self._contribute()
            raise
        finally:
            for buffer in self._buffers:
                buffer.delivered = buffer.info is not None

    def _contribute(self) -> None:
        """Contributes the buffers that the backward pass has not contributed."""
        self._pending = False
        for buffer in self._buffers:
            if not buffer.sent:
                buffer.send()
            buffer.restart()

    def _last_rounds(self) -> Iterator[None]:
        for buffer in self._buffers:
            buffer.begin_flush(self._pending)
            buffer.restart()
        self._pending = False
        while True:
            for buffer in self._buffers:
                buffer.take_last()
            if not any(buffer.info for buffer in self._buffers):
                return
            if all(buffer.series.ended for buffer in self._buffers):
                self._runs = False
                self._ends = self._options.results == "latest"
            yield

    def _shown(self, rounds: Iterator[None]) -> Iterator[RoundInfo]:
        """Shows the results of buffers in `.grad` as often as `rounds` has taken some."""
        with contextlib.closing(rounds):
            for _ in each_shown(rounds, "round", self.name):
                fresh = [buffer for buffer in self._buffers if buffer.info]
                for buffer in self._buffers:
                    buffer.show()
                info = fresh[0].info
                self.contributors = len(info.contributors)
                try:
                    yield info
                finally:  # a caller may leave its loop early
                    for buffer in fresh:
                        buffer.applied(self._options.digest_every)
                self._synchronize()

    def flush(self) -> Iterator[RoundInfo]:
        """Ends the series; writes the results of all rounds to `.grad` until all ranks flush.

        If the caller left its loop, another call goes on where the last one stopped.

        Yields:
          What is known about the round. Apply `.grad` before asking for the next round.

        Raises:
          InvalidArgumentError: An unfrozen or replaced parameter has a gradient. Gradients were
            cleared.
        """
        self._give_up()
        self._synchronize()
        self._open()
        self._require_unchanged(idle=True)
        yield from self._shown(self._last_rounds())

    def retire(self) -> None:
        """Removes the hooks after the job has ended."""
        self.close()

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._hooks:
            handle.remove()
        self._hooks = []
        release(self._parameters, self)


@dataclasses.dataclass(frozen=True)
class RoundOptions:
    """What a wrapper was told about rounds that do not wait for all workers."""

    sync: str | Quorum | Replay
    algorithm: str
    results: str
    synchronize_every: int  # rounds; 0: only `flush` makes replicas equal
    digest_every: int  # rounds; 0: never
    wire: str | None  # "float16", "bfloat16" or None
    buffer_bytes: int  # 0: whole updates
    group: Group | None
    op: Operator = "average"


def round_options(
    sync: str | Quorum | Replay,
    group: Group | None,
    *,
    algorithm: str,
    results: str,
    synchronize_every: int,
    digest_every: int | None,
    wire_dtype: TorchWireDType | None,
    buffer_bytes: int,
) -> RoundOptions | None:
    """Returns the options of partial rounds, or None if `sync` waits for all workers.

    Raises:
      InvalidArgumentError: An option is unknown, or has no meaning with the others.
    """
    text_of(results, "results", RESULTS)
    every = count_of(synchronize_every, "synchronize_every")
    digests = 0 if digest_every is None else count_of(digest_every, "digest_every")
    if not wants_rounds(sync, algorithm, group):
        if results != "every" or every:
            raise InvalidArgumentError(
                f"results={results!r} and synchronize_every={every} are for a partial sync; with "
                "sync='full' every rank applies every result (results='every')"
            )
        return None
    check_results(results, sync, digests)
    if every and results == "every":
        raise InvalidArgumentError(
            f"synchronize_every is {every}; with results='every' replicas are always equal, so it "
            "is for results='latest'"
        )
    wire = wire_dtype_name(wire_dtype)
    if wire not in (None, "float32", "float16", "bfloat16"):
        raise InvalidArgumentError(
            f"wire_dtype is {wire}; with sync={sync!r} it must be None, 'float16' or 'bfloat16'"
        )
    if every and buffer_bytes:
        raise InvalidArgumentError(
            f"synchronize_every={every} needs whole updates, and buffer_bytes is {buffer_bytes}; "
            "leave one of them out, and flush() where replicas are to be averaged"
        )
    if isinstance(sync, Replay) and buffer_bytes:
        raise InvalidArgumentError(
            f"buffer_bytes is {buffer_bytes}; a Replay repeats whole updates, so it must be 0"
        )
    if digest_every is None:
        digests = 100 if results == "every" else 0
    narrow = None if wire == "float32" else wire
    return RoundOptions(sync, algorithm, results, every, digests, narrow, buffer_bytes, group)


def require_steps(optimizer: torch.optim.Optimizer, sync: str | Quorum | Replay) -> None:
    """Refuses an optimizer that cannot make a step for each round, with the round's result.

    Raises:
      InvalidArgumentError: Its steps need a closure, or sparse gradients.
    """
    needs = None
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        needs = "needs a closure for each step, and a step takes the result of a round"
    elif isinstance(optimizer, torch.optim.SparseAdam):
        needs = "needs sparse gradients, and the results of rounds are dense"
    if needs is not None:
        raise InvalidArgumentError(
            f"sync={sync!r} does not take torch.optim.{type(optimizer).__name__}, which {needs}; "
            "use sync='full', or another optimizer"
        )


class InRounds:
    """The properties that tell a wrapper's rounds, if it was made with a partial `sync`."""

    name: str
    _partial: PartialReducer | None

    @property
    def round(self) -> int:
        """The number of rounds applied with a partial `sync`; equal numbers mean equal parameters.

        Raises:
          InvalidArgumentError: The wrapper was made with sync="full".
        """
        return self._need_partial().rounds

    @property
    def statistics(self) -> RoundStatistics:
        """The statistics with a partial `sync`: which workers were in which round or late.

        Raises:
          InvalidArgumentError: The wrapper was made with sync="full".
        """
        return self._need_partial().statistics

    def _need_partial(self) -> PartialReducer:
        if self._partial is None:
            raise InvalidArgumentError(f"{self.name} was made with sync='full'")
        return self._partial
