"""What the classes that `DistributedOptimizer` makes have in common."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

import herring
from herring.arrays import runtime
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common.compression import is_own, wire_dtype_of
from herring.horovod.common.operators import Sum, check_passes
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.torch.compiled import level_of_program, untraced
from herring.horovod.torch.gradients import PlannedGradients, RoundGradients, TensorGradients
from herring.partial import RoundInfo, RoundStatistics
from herring.torch.naming import Named, named_in
from herring.torch.optimizer import no_copies
from herring.torch.ownership import retire_ended
from herring.torch.partial import RoundOptions


class Options(NamedTuple):
    """What a `DistributedOptimizer` was asked for."""

    op: int
    compression: Any
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    rounds: RoundOptions | None  # of partial rounds; None: sync="full"
    each_round: Callable[[RoundInfo], None] | None


class Distributed(torch.optim.Optimizer):
    """The distributed part of an optimizer; a new class derives from this and the wrapped class."""

    _gradients: Any  # Planned, of tensors, or of partial rounds. None if this rank averages alone.
    _known: Named | None
    _options: Options
    _job: Any  # The job in which the gradients are averaged.
    _defers: bool  # Whether that waits until elastic training begins.
    _synchronizes: bool
    _synchronized: bool
    _wrapped: Callable[[], torch.optim.Optimizer | None]  # Schedules keep it alive.

    def enter_job(self) -> None:
        """Averages with the ranks of the present job (collective).

        Gradients of a step that the job before has not ended are dropped.
        """
        if self._job is not None and runtime.is_running(self._job):
            return
        if self._gradients is not None:
            self._gradients.retire()
        if self._job is not None:
            super().zero_grad(set_to_none=True)
        self._gradients, self._synchronized = None, False
        self._job = runtime.job()
        self._average()

    def _average(self) -> None:
        """Sets `_gradients` (collective)."""
        options = self._options
        process_set = options.process_set
        if process_set is not global_process_set and process_set.included() is False:
            return
        group = group_of(process_set)
        name = name_of_next("horovod.DistributedOptimizer", group)
        named = named_in(self, self._known)
        for _, parameter in named:
            retire_ended(parameter)  # of another wrapper, which the program may still hold
        if process_set.size() == 1:
            return
        passes = self.backward_passes_per_step
        # SparseAdam accepts sparse gradients only, so all ranks' rows are gathered: the same sums.
        takes_sparse = isinstance(self, torch.optim.SparseAdam)
        densify = options.sparse_as_dense and not takes_sparse
        if is_own(options.compression):
            self._gradients = PlannedGradients(
                named,
                name=name,
                passes=passes,
                sums=options.op == Sum,
                wire_dtype=wire_dtype_of(options.compression),
                densify=densify,
                sparse=[p for _, p in named] if takes_sparse else [],
                process_set=process_set,
                relist=lambda: None,
            )
            return
        factor = options.predivide_factor
        self._gradients = TensorGradients(
            named,
            name=name,
            passes=passes,
            op=options.op,
            scales=(1 / factor, factor),
            compression=options.compression,
            densify=densify,
            process_set=process_set,
        )

    @untraced
    def synchronize(self) -> None:
        """Completes the averages in `.grad`; call this before you read or clip gradients.

        Afterwards, ``with optimizer.skip_synchronize(): optimizer.step()`` uses the gradients as
        they are.

        Raises:
          HorovodInternalError: averaging failed.
        """
        if self._defers:
            self.enter_job()  # if the program does not use hvd.elastic.run
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Returns a context in which `step` does not synchronize, after a call of `synchronize`."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with averaged gradients.

        Args:
          closure: a function that computes the loss again and returns it. It may call `backward()`
            several times, the same number of times on every rank.

        Returns:
          The result of the wrapped optimizer's `step`.

        Raises:
          HorovodInternalError: averaging failed.
        """
        self._tell_schedulers()
        if closure is None:
            if self._synchronizes:
                self._synchronize_once()
            self._synchronized = False
            return super().step()

        def averaged() -> Any:
            with torch.enable_grad():
                loss = closure()
            if self._synchronizes:
                self._synchronize_once()
            self._synchronized = False
            return loss

        return super().step(averaged)

    def _tell_schedulers(self) -> None:
        """Tells schedules that were made before this wrapper that a step has been made.

        They look for this mark on the optimizer that they were given, and warn without it.
        """
        if (wrapped := self._wrapped()) is not None:
            wrapped._opt_called = True  # type: ignore[attr-defined]

    def _synchronize_once(self) -> None:
        gradients = self._gradients
        if self._synchronized and not (gradients is not None and gradients.pending):
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): the gradients are reduced a second time. Write "
                "'with optimizer.skip_synchronize(): optimizer.step()'",
                stacklevel=level_of_program(),
            )
        self.synchronize()

    @untraced
    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """Clears gradients; the arguments are those of the wrapped optimizer.

        Raises:
          AssertionError: called after `backward()` but before `step()` or `synchronize()`.
        """
        gradients = self._gradients
        if gradients is not None and gradients.broken:
            warnings.warn(
                "the last backward pass raised an error; its step is given up on all ranks, and "
                "gradients are cleared",
                stacklevel=level_of_program(),
            )
            gradients.give_up()
        elif gradients is not None and gradients.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(): averaged gradients would be lost"
            )
        return super().zero_grad(*arguments, **options)

    def flush(self) -> None:
        """Ends training with a partial `sync`; with sync="full" it does nothing."""

    @property
    def round(self) -> int:
        """The number of rounds applied with a partial `sync`; equal numbers mean equal parameters.

        Raises:
          InvalidArgumentError: the optimizer was made with sync="full", or this rank is not in its
            process set.
        """
        return self._rounds_of("round").reducer.rounds

    @property
    def statistics(self) -> RoundStatistics:
        """The statistics with a partial `sync`: which workers were in which round or late.

        Raises:
          InvalidArgumentError: the optimizer was made with sync="full", or this rank is not in its
            process set.
        """
        return self._rounds_of("statistics").reducer.statistics

    def _rounds_of(self, what: str) -> RoundGradients:
        if isinstance(self._gradients, RoundGradients):
            return self._gradients
        options = self._options
        sync = "full" if options.rounds is None else options.rounds.sync
        raise InvalidArgumentError(
            f"the optimizer has no {what}: it was made with sync={sync!r} for "
            f"{options.process_set}, and this is rank {herring.rank()}; partial rounds are of the "
            "ranks of the process set, with sync='solo', 'majority', a herring.Quorum or a "
            "herring.Replay"
        )

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes whose gradients add up before a step.

        Raises:
          InvalidArgumentError: `passes` is not an integer of at least 1.
        """
        check_passes(passes)
        self.backward_passes_per_step = passes
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def __getstate__(self) -> dict[str, Any]:
        raise no_copies()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group to the optimizer (collective)."""
        before = {id(p) for group in self.param_groups for p in group["params"]}
        super().add_param_group(param_group)
        known = self.__dict__.get("_known")  # Missing while the base class is initialized.
        if known is not None:
            number = len(self.param_groups) - 1
            known += [
                (f"group{number}.parameter{i}", p)
                for i, p in enumerate(self.param_groups[-1]["params"])
                if id(p) not in {id(q) for _, q in known}
            ]
        gradients = self.__dict__.get("_gradients")
        if gradients is None:
            return
        named = named_in(self, known)
        gradients.adopt(named, [(n, p) for n, p in named if id(p) not in before])
