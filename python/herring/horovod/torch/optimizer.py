"""DistributedOptimizer, which makes any torch optimizer use gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

import herring
from herring.arrays import runtime
from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError
from herring.horovod.common import elastic
from herring.horovod.common.adasum import require_power_of_two
from herring.horovod.common.compression import is_own, wire_dtype_of
from herring.horovod.common.operators import (
    OPERATORS,
    Adasum,
    Average,
    Sum,
    check_gradient_options,
    check_passes,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.common.starter import Reduction
from herring.horovod.torch.compiled import level_of_program, untraced
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.gradients import PlannedGradients, RoundGradients, TensorGradients
from herring.horovod.torch.starts import Starter
from herring.partial import Quorum, Replay, RoundInfo, RoundStatistics
from herring.torch.naming import Named, listed, named_in, require_all
from herring.torch.optimizer import no_copies
from herring.torch.ownership import retire_ended
from herring.torch.partial import RoundOptions, round_options


class _Options(NamedTuple):
    """What a `DistributedOptimizer` was asked for."""

    op: int
    compression: Any
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    sync: str | Quorum | Replay
    algorithm: str
    each_round: Callable[[RoundInfo], None] | None
    digest_every: int


class _Distributed(torch.optim.Optimizer):
    """The distributed part of an optimizer; a new class derives from this and the wrapped class."""

    _gradients: Any  # Planned, of tensors, or of partial rounds. None if this rank averages alone.
    _known: Named | None
    _options: _Options
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
        raise InvalidArgumentError(
            f"the optimizer has no {what}: it was made with sync={options.sync!r} for "
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


class _DistributedInRounds(_Distributed):
    """Makes one step for each partial round, with the result of the round."""

    def _average(self) -> None:
        options = self._options
        process_set = options.process_set
        if process_set is not global_process_set and process_set.included() is False:
            return
        found = _round_options(options, group_of(process_set))
        assert found is not None  # `sync` is partial
        self._gradients = RoundGradients(
            named_in(self, self._known),
            name=name_of_next("horovod.DistributedOptimizer", group_of(process_set)),
            passes=self.backward_passes_per_step,
            options=dataclasses.replace(found, op=OPERATORS[options.op]),
        )

    def synchronize(self) -> None:
        """Raises an error, because a step may have the results of several rounds.

        Raises:
          InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"synchronize() is for sync='full'; with sync={self._options.sync!r} step() makes one "
            "step for each round, so read or clip averages in DistributedOptimizer(each_round=)"
        )

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises an error, as `synchronize` does."""
        self.synchronize()
        yield

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Contributes this rank's gradients, and makes one step for each round.

        Rounds that this rank missed come first.

        Args:
          closure: a function that computes the loss again and returns it.

        Returns:
          The result of `closure`, or None.

        Raises:
          HorovodInternalError: a round failed.
        """
        self._tell_schedulers()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._gradients is None:
            super(_Distributed, self).step()
        else:
            self._step_in(self._gradients.steps())
        return loss

    @untraced
    def flush(self) -> None:
        """Makes the steps of all rounds until all ranks flush; then parameters are equal on all.

        Ranks may have made different numbers of steps. The next `step` begins another series of
        rounds, together with all ranks.

        Raises:
          HorovodInternalError: a round failed.
        """
        if self._gradients is not None:
            self._step_in(self._gradients.flush())

    def _step_in(self, rounds: Iterator[RoundInfo]) -> None:
        each_round = self._options.each_round
        for info in rounds:
            if each_round is not None:
                each_round(info)
            super(_Distributed, self).step()

    @untraced
    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """Clears gradients; the arguments are those of the wrapped optimizer.

        Raises:
          AssertionError: called after `backward()` but before `step()`.
        """
        gradients = self._gradients
        if gradients is None or gradients.abandon(level_of_program()) or not gradients.pending:
            return super(_Distributed, self).zero_grad(*arguments, **options)
        raise AssertionError(
            "optimizer.zero_grad() was called after loss.backward() but before optimizer.step(): "
            "gradients would be lost"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises an error, because ranks may be at different rounds.

        Raises:
          InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"add_param_group is for sync='full', not {self._options.sync!r}: ranks may be at "
            "different rounds. Add the group before wrapping the optimizer"
        )


class _DistributedAdasum(_Distributed):
    """Combines the updates of the parameters with Adasum instead of averaging gradients."""

    _name: str

    def _average(self) -> None:
        process_set = self._options.process_set
        if process_set is not global_process_set and process_set.included() is False:
            raise InvalidArgumentError(f"rank {herring.rank()} is not in {process_set}")
        self._name = name_of_next("horovod.DistributedOptimizer", group_of(process_set))
        require_power_of_two(process_set.size() or 1)

    def synchronize(self) -> None:
        """Does nothing, because `step` combines updates and not gradients."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises an error, because a step with Adasum always synchronizes.

        Raises:
          AssertionError: always.
        """
        raise AssertionError("with op=hvd.Adasum a step cannot skip its synchronization")
        yield

    @untraced
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step with this rank's gradients, and combines the updates of all ranks.

        Args:
          closure: a function that computes the loss again and returns it.

        Returns:
          The result of the wrapped optimizer's `step`.

        Raises:
          HorovodInternalError: the updates could not be combined; the parameters have this rank's
            own update only.
        """
        self._tell_schedulers()
        if self._defers:
            self.enter_job()
        options = self._options
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        loss = super(_Distributed, self).step(closure)
        with torch.no_grad():
            pairs = [
                options.compression.compress(p.detach() - old) for p, old in zip(parameters, before)
            ]
            call = Starter(f"{self._name}.delta", options.process_set).grouped_allreduce(
                [delta for delta, _ in pairs], Reduction(Adasum), in_place=True
            )
            for p, old, delta, (_, context) in zip(parameters, before, call.result(), pairs):
                p.copy_(old + options.compression.decompress(delta, context))
        return loss


def _check_groups(groups: Any, num_groups: int) -> None:
    if num_groups:
        warnings.warn("num_groups is deprecated; use groups", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    if groups is None:
        return
    if isinstance(groups, int) and groups >= 0:
        return
    if not isinstance(groups, (list, tuple)):
        raise InvalidArgumentError(
            f"groups is {groups!r}; it must be an integer, 0 or more, or a list of lists of "
            "parameters"
        )
    listed = [p for group in groups for p in group]
    if not all(isinstance(p, torch.Tensor) for p in listed):
        raise InvalidArgumentError("groups contains something other than lists of parameters")
    if len({id(p) for p in listed}) < len(listed):
        raise InvalidArgumentError("groups contains a parameter more than once")


def _round_options(options: _Options, group: Group | None) -> RoundOptions | None:
    """Returns the options of partial rounds; None if `sync` is "full"."""
    return round_options(
        options.sync,
        group,
        algorithm=options.algorithm,
        results="every",
        synchronize_every=0,
        digest_every=options.digest_every,
        wire_dtype=None,
        buffer_bytes=0,
    )


def _is_partial(optimizer: torch.optim.Optimizer, options: _Options) -> bool:
    """Returns whether `sync` means partial rounds.

    Raises:
      InvalidArgumentError: another option has no meaning together with `sync`.
    """
    sync, process_set = options.sync, options.process_set
    outside = process_set is not global_process_set and process_set.included() is False
    group = None if process_set is global_process_set or outside else group_of(process_set)
    if not _round_options(options, group):
        if options.each_round is not None:
            raise InvalidArgumentError(
                "each_round is for sync='solo', 'majority', a herring.Quorum or a herring.Replay; "
                "with sync='full' call synchronize() and read the averages before step()"
            )
        return False
    refused = {
        "op=hvd.Adasum (Average or Sum)": options.op == Adasum,
        "a compression (hvd.Compression.none)": options.compression is not Compression.none,
        "torch.optim.SparseAdam (results are dense)": isinstance(optimizer, torch.optim.SparseAdam),
        "elastic training (all ranks would commit equally often)": runtime.is_elastic(),
    }
    for what, given in refused.items():
        if given:
            raise InvalidArgumentError(f"sync={sync!r} does not take {what}")
    return True


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    sync: str | Quorum | Replay = "full",
    algorithm: str = "herring",
    each_round: Callable[[RoundInfo], None] | None = None,
    digest_every: int = 100,
) -> torch.optim.Optimizer:
    """Wraps an optimizer so that its `step` uses gradients averaged over all ranks (collective).

    Gradients are averaged while the backward pass runs, in Herring's planned rounds, or tensor by
    tensor with a compressor of your own. All ranks must wrap the optimizer together, because their
    parameters are compared. In an elastic job (`hvd.elastic.run`) they are compared when training
    begins. The parameters' values are not changed: call `broadcast_parameters` before training. A
    rank that is alone, or not in the process set, steps without communication.

    Args:
      optimizer: any torch optimizer. Its state is shared with the new optimizer; do not use it
        any more.
      named_parameters: `model.named_parameters()`, for messages and names of operations.
      gradient_predivide_factor: has no effect unless you pass your own compressor, because sums
        cannot overflow before they are divided.
      sparse_as_dense: True converts sparse gradients to dense ones; False exchanges their rows.
        With SparseAdam, which needs sparse gradients, rows are always exchanged.
      sync: Herring's own. "full" waits for every rank. "solo", "majority", a `herring.Quorum` or a
        `herring.Replay` exchanges gradients in rounds that do not (docs/partial.md). `step()` then
        makes one step for each round's result, and training ends with `flush()`.
      algorithm: who closes the rounds and sums, with `sync` "solo" or "majority": "herring" (the
        servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers).
      each_round: with such a `sync`, a function called before each of these steps, when `.grad` has
        the result. Use it for clipping, and for schedulers that count rounds.
      digest_every: with such a `sync`, the number of rounds after which ranks compare a digest of
        the parameters; 0 means never.

    Returns:
      An optimizer of the same class, with the additional methods `synchronize()`,
      `skip_synchronize()`, `set_backward_passes_per_step()` and `flush()`, and the properties
      `round` and `statistics` of a partial `sync`.

    Raises:
      InvalidArgumentError: `named_parameters` has a name twice or lacks parameters, or another
        argument has an invalid value.
      MismatchError: the parameters differ between ranks.
    """
    check_gradient_options(op, gradient_predivide_factor)
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
    check_passes(backward_passes_per_step)
    _check_groups(groups, num_groups)
    known = listed(named_parameters)
    require_all(optimizer, known, frozen=True)
    options = _Options(
        op,
        compression,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        sync,
        algorithm,
        each_round,
        digest_every,
    )
    herring.rank()  # Raises an error if this process is not in a job.
    base = _DistributedAdasum if op == Adasum else _Distributed
    if _is_partial(optimizer, options):
        base = _DistributedInRounds
    made_of: tuple[Any, ...] = (base, type(optimizer))
    kind: Any = type(type(optimizer).__name__, made_of, {"__doc__": base.__doc__})
    wrapper = kind.__new__(kind)
    # Existing schedulers have set their own `step` on the optimizer, which would bypass ours.
    wrapper.__dict__.update(
        {key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")}
    )
    wrapper._gradients = wrapper._job = None
    wrapper._known = known
    wrapper._wrapped = weakref.ref(optimizer)
    wrapper._options = options
    wrapper._defers = elastic.defers()
    wrapper._synchronizes = True
    wrapper._synchronized = False
    wrapper.backward_passes_per_step = backward_passes_per_step
    wrapper.op, wrapper.process_set = op, process_set
    wrapper._parameter_names = {p: name for name, p in named_in(optimizer, known)}
    if wrapper._defers:
        elastic.enter_later(wrapper)
    else:
        wrapper.enter_job()
    return wrapper
