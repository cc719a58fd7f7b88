"""DistributedOptimizer, which makes any torch optimizer use gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

import herring
from herring.arrays import runtime
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common import elastic
from herring.horovod.common.adasum import require_power_of_two
from herring.horovod.common.compression import is_own, wire_dtype_of
from herring.horovod.common.operators import (
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
from herring.horovod.torch.gradients import PlannedGradients, TensorGradients
from herring.horovod.torch.starts import Starter
from herring.torch.naming import Named, listed, named_in, require_all
from herring.torch.optimizer import no_copies
from herring.torch.ownership import retire_ended


class _Options(NamedTuple):
    """What a `DistributedOptimizer` was asked for."""

    op: int
    compression: Any
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet


class _Distributed(torch.optim.Optimizer):
    """The distributed part of an optimizer; a new class derives from this and the wrapped class."""

    _gradients: PlannedGradients | TensorGradients | None  # None if this rank averages alone.
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

    Returns:
      An optimizer of the same class, with the additional methods `synchronize()`,
      `skip_synchronize()` and `set_backward_passes_per_step()`.

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
    base = _DistributedAdasum if op == Adasum else _Distributed
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
    wrapper._options = _Options(
        op, compression, gradient_predivide_factor, sparse_as_dense, process_set
    )
    wrapper._defers = elastic.defers()
    wrapper._synchronizes = True
    wrapper._synchronized = False
    wrapper.backward_passes_per_step = backward_passes_per_step
    wrapper.op, wrapper.process_set = op, process_set
    wrapper._parameter_names = {p: name for name, p in named_in(optimizer, known)}
    herring.rank()  # Raises an error if this process is not in a job.
    if wrapper._defers:
        elastic.enter_later(wrapper)
    else:
        wrapper.enter_job()
    return wrapper
