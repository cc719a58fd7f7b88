"""Eager SGD: training in rounds that do not wait for all workers (partial collectives, section 5).

A rank contributes the gradients of a step as one array when the backward pass has ended. Every rank
applies the results of all rounds in order, including rounds that it missed. Replicas therefore
never differ, and no gradient is lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import warnings
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from herring.arrays.arguments import count_of, shown, text_of
from herring.arrays.groups import Group, scope_of
from herring.errors import HerringError, InvalidArgumentError
from herring.partial import (
    PartialReduction,
    Quorum,
    Replay,
    RoundInfo,
    RoundStatistics,
    is_partial,
)
from herring.partial.allreduce import allreduce
from herring.partial.reduction import ALGORITHMS, RESULTS, check_results
from herring.torch.engine import at_end_of_pass, current_pass
from herring.torch.ownership import release
from herring.torch.ranges import each_shown
from herring.torch.reducer import Listing, Relist
from herring.torch.tensors import (
    TorchWireDType,
    check_not_capturing,
    dtype_name,
    wire_dtype_name,
)


class PartialReducer(Listing):
    """Contributes gradients to rounds and writes the results of rounds to `.grad`.

    The array of the series has all gradients, in the wire dtype if there is one, else in float64
    if any parameter is float64, else in float32. Behind them it has, for each parameter, the share
    of workers with a gradient. A parameter that no worker used thus keeps `.grad` None.

    Ranks may be at different rounds of a series, so the list of parameters is fixed while a series
    runs. All ranks begin a series together, and then take those that require gradients.

    With results="latest" a rank that was late applies the newest result only, so replicas differ
    until they are averaged: after every `synchronize_every` rounds, and at the end.

    Attributes:
      rounds: The number of rounds that this rank has seen the results of. Unless
        results="latest", ranks with equal numbers have equal parameters.
      contributors: The number of workers whose gradients are in the last result.
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
        self.rounds = 0
        self.contributors = 0
        self.statistics = RoundStatistics()
        self._options = options
        self._synchronized = 0  # how often replicas were averaged within series
        self._ends = False  # whether they are to be averaged because a series has ended
        self._parameters: Sequence[torch.nn.Parameter] = ()
        self._hooks: list[Any] = []
        self._generation = 0
        self._series: PartialReduction | None = None
        self._pass: int | None = None  # the backward pass that runs, or the last one if it raised
        self._pending = False  # whether gradients wait to be contributed
        self._open()

    def _open(self) -> PartialReduction:
        """Returns the series; begins one if none is under way (collective in that case)."""
        if self._series is None:
            try:
                self._set_up()
                self._series = PartialReduction(
                    len(self._mean),
                    dtype_name(self._mean.dtype),
                    sync=self._options.sync,
                    name=f"{self.name}.rounds{self._generation}",
                    statistics=self.statistics,
                    group=self._options.group,
                    algorithm=self._options.algorithm,
                    results=self._options.results,
                )
            except BaseException:
                self.close()
                raise
            self._generation += 1
        return self._series

    def _set_up(self) -> None:
        """Lays out the arrays for the parameters that require gradients now (collective)."""
        self._has_changed()  # lists them again
        given = self._options
        options = (
            f"sync={given.sync!r} digest_every={given.digest_every} results={given.results} "
            f"synchronize_every={given.synchronize_every} wire_dtype={given.wire}"
        )
        _, parameters = self._agree(options, self.name, given.group)
        self.close()
        self._take_over(parameters)
        self._parameters = parameters
        self._hooks = [self._hook(parameter) for parameter in parameters]
        double = any(p.dtype == torch.float64 for p in parameters)
        self._wide = torch.float64 if double else torch.float32
        dtype = self._wide if given.wire is None else getattr(torch, given.wire)
        self._places: list[slice] = []
        start = 0
        for parameter in parameters:
            self._places.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        self._used = slice(start, None)
        self._given = torch.zeros(start + len(parameters), dtype=dtype, device="cpu")
        self._mean = torch.zeros_like(self._given)

    def _hook(self, parameter: torch.nn.Parameter) -> Any:
        myself = weakref.ref(self)  # the garbage collector does not see the engine's hooks

        def hook(_parameter: torch.Tensor) -> None:
            if (reducer := myself()) is not None and reducer.enabled:
                reducer._produced()

        return parameter.register_post_accumulate_grad_hook(hook)

    def _produced(self) -> None:
        running = current_pass()
        if self._pass != running:
            self._pass = running
            # The engine calls this only if the pass does not raise.
            at_end_of_pass(self._passed)

    def _passed(self) -> None:
        self._pass = None
        self._pending = True

    def before_forward(self) -> None:
        """Gives up a backward pass that raised; the other ranks need not know.

        Raises:
          InvalidArgumentError: Gradients wait to be contributed, or a parameter was unfrozen or
            replaced.
        """
        self.abandon(stacklevel=7)  # points past Module.__call__
        if self._series is not None:
            self._require_unchanged()
        if self._pending and self.enabled:
            raise InvalidArgumentError(
                f"{self.name}: the gradients of the last backward pass were not exchanged; with "
                "sync=... follow it by 'for _ in model.rounds(): optimizer.step()'"
            )

    def abandon(self, stacklevel: int) -> None:
        """Clears gradients if the last backward pass raised, with a warning."""
        if self._give_up():
            warnings.warn(
                f"{self.name}: the last backward pass raised an error; this rank gave its step up, "
                "and gradients were cleared",
                stacklevel=stacklevel + 1,
            )

    def _give_up(self) -> bool:
        """Returns whether the last backward pass raised; if so, clears gradients."""
        raised = self._pass is not None
        if raised:
            self._clear()
        return raised

    def _clear(self) -> None:
        self._pass = None
        self._pending = False
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

    def _gather(self) -> None:
        check_not_capturing(self._parameters, self.name)
        used = self._given[self._used]
        for index, (parameter, place) in enumerate(zip(self._parameters, self._places)):
            gradient = parameter.grad
            used[index] = gradient is not None
            if gradient is None:
                self._given[place].zero_()
            else:
                if gradient.layout != torch.strided:
                    gradient = gradient.to_dense()
                self._given[place].view(parameter.shape).copy_(gradient.detach())
        self._pending = False

    def _show(self) -> None:
        used = self._mean[self._used].tolist()
        for parameter, place, share in zip(self._parameters, self._places, used):
            if share == 0:
                parameter.grad = None
                continue
            # The user may keep the gradient, and the next result is written to the same memory.
            view = self._mean[place].view(parameter.shape)
            parameter.grad = view.to(device=parameter.device, dtype=parameter.dtype, copy=True)

    def _note(self, info: RoundInfo) -> None:
        self.contributors = len(info.contributors)
        self._show()

    def _applied(self, series: PartialReduction, before: int) -> None:
        """Counts the results taken since there were `before`, of which the newest was applied."""
        self.rounds += series.rounds - before
        every = self._options.digest_every
        if every and self.rounds % every == 0:
            series.digest(self.digest())

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
        flat = torch.empty(self._used.start, dtype=self._wide, device="cpu")
        for parameter, place in zip(self._parameters, self._places):
            flat[place].view(parameter.shape).copy_(parameter.detach())
        allreduce(flat.numpy(), name=f"{self.name}.{what}", group=self._options.group)
        with torch.no_grad():
            for parameter, place in zip(self._parameters, self._places):
                parameter.copy_(flat[place].view(parameter.shape))

    def digest(self) -> int:
        """Returns a 64-bit hash of all parameters; equal after equal numbers of rounds."""
        state = hashlib.blake2b(digest_size=8)
        for parameter in self._parameters:
            flat = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
            state.update(flat.numpy())
        return int.from_bytes(state.digest(), "little")

    def steps(self) -> Iterator[RoundInfo]:
        """Contributes this step's gradients and writes one result after the other to `.grad`.

        If this rank missed rounds, their results come first. The gradients then go to the round
        that closes next, and nothing is waited for. Otherwise this rank waits for the next round.

        Yields:
          What is known about the round. Apply `.grad` before asking for the next round.
        """
        if self._give_up():
            raise HerringError(
                f"{self.name}: the last backward pass raised an error; this rank gave its step up, "
                "and gradients were cleared"
            )
        self._synchronize()  # what a loop that was left early owes
        series = self._open()
        self._require_unchanged()
        self._gather()
        before = series.rounds
        with contextlib.closing(series.step(self._given, self._mean)) as results:
            for info in each_shown(results, "round", self.name):
                self._note(info)
                try:
                    yield info
                finally:  # a caller may leave its loop early
                    self._applied(series, before)
                    before = series.rounds
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
        series = self._open()
        self._require_unchanged(idle=True)
        if self._pending:
            self._gather()
        else:
            self._given.zero_()
        self._mean.copy_(self._given)
        before = series.rounds
        for info in each_shown(series.flush(self._mean), "round", self.name):
            self._note(info)
            if series.ended:
                self._series = None
                self._ends = self._options.results == "latest"
            try:
                yield info
            finally:
                self.rounds += series.rounds - before
                before = series.rounds
            self._synchronize()

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
    group: Group | None


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
    text_of(algorithm, "the algorithm", ALGORITHMS)
    text_of(results, "results", RESULTS)
    every = count_of(synchronize_every, "synchronize_every")
    digests = 0 if digest_every is None else count_of(digest_every, "digest_every")
    if not is_partial(sync, scope_of(group).size):
        if algorithm != "herring":
            raise InvalidArgumentError(
                f"algorithm={shown(algorithm)} is for sync='solo' and 'majority'; with sync='full' "
                "gradients go through the servers (algorithm='herring')"
            )
        if results != "every" or every:
            raise InvalidArgumentError(
                f"results={results!r} and synchronize_every={every} are for a partial sync; with "
                "sync='full' every rank applies every result (results='every')"
            )
        return None
    if isinstance(sync, Replay) and group is not None:
        raise InvalidArgumentError(
            f"sync={sync!r} takes no group: a recording covers all ranks; group= allows "
            "'full', 'solo', 'majority' and herring.Quorum"
        )
    check_results(results, sync, digests)
    if every and results == "every":
        raise InvalidArgumentError(
            f"synchronize_every is {every}; with results='every' replicas are always equal, so it "
            "is for results='latest'"
        )
    wire = wire_dtype_name(wire_dtype)
    if wire not in (None, "float32", "float16", "bfloat16") or buffer_bytes:
        raise InvalidArgumentError(
            f"sync={sync!r} sends gradients as one array: wire_dtype={shown(wire_dtype)} must be "
            f"None, 'float16' or 'bfloat16', and buffer_bytes={buffer_bytes} must be 0"
        )
    if digest_every is None:
        digests = 100 if results == "every" else 0
    narrow = None if wire == "float32" else wire
    return RoundOptions(sync, algorithm, results, every, digests, narrow, group)


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
