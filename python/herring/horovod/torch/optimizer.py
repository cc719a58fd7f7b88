"""DistributedOptimizer: any torch optimizer, with gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

import herring
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common.adasum import require_power_of_two
from herring.horovod.common.operators import (
    Adasum,
    Average,
    Sum,
    check_gradient_options,
    check_passes,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.common.starter import Reduction
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.gradients import Named, PlannedGradients, TensorGradients
from herring.horovod.torch.starts import Starter

__all__ = ["DistributedOptimizer"]


class _Distributed(torch.optim.Optimizer):
    """What a distributed optimizer has of its own; a class is made of it and the one wrapped."""

    _gradients: PlannedGradients | TensorGradients | None  # None: this rank is alone
    _known: Named | None
    _synchronizes: bool
    _synchronized: bool

    def synchronize(self) -> None:
        """Leaves the averages in `.grad`: call it before gradients are looked at or clipped.

        ``with optimizer.skip_synchronize(): optimizer.step()`` then steps with them.

        Raises:
          HorovodInternalError: it has failed.
        """
        if self._gradients is not None:
            self._gradients.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Inside, `step` takes gradients as they are: `synchronize` was called before."""
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with averaged gradients.

        Args:
          closure: as of the optimizer that is wrapped; it may call `backward()` several times,
            equally often on every rank.

        Raises:
          HorovodInternalError: an average has failed.
        """
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

    def _synchronize_once(self) -> None:
        gradients = self._gradients
        if self._synchronized and not (gradients is not None and gradients.pending):
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() after "
                "optimizer.synchronize(): the gradients are not averaged again. Write "
                "'with optimizer.skip_synchronize(): optimizer.step()'",
                stacklevel=4,
            )
            return
        self.synchronize()

    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """Clears gradients.

        Raises:
          AssertionError: after `backward()` and before `step()` or `synchronize()`.
        """
        gradients = self._gradients
        if gradients is not None and gradients.broken:
            warnings.warn(
                "the last backward pass raised an error; its step is given up on all ranks, and "
                "gradients are cleared",
                stacklevel=2,
            )
            gradients.give_up()
        elif gradients is not None and gradients.pending:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but before "
                "optimizer.step() or optimizer.synchronize(): gradients that were averaged would "
                "be thrown away"
            )
        return super().zero_grad(*arguments, **options)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes over how many backward passes gradients accumulate before a step."""
        check_passes(passes)
        if self._gradients is not None:
            self._gradients.set_passes(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters (collective)."""
        before = {id(p) for group in self.param_groups for p in group["params"]}
        super().add_param_group(param_group)
        gradients = self.__dict__.get("_gradients")  # none yet while the base class is made
        if gradients is None:
            return
        known = self._known
        if known is not None:
            number = len(self.param_groups) - 1
            known += [
                (f"group{number}.parameter{i}", p)
                for i, p in enumerate(self.param_groups[-1]["params"])
                if id(p) not in {id(q) for _, q in known}
            ]
        named = _named_parameters(self, known)
        gradients.adopt(named, [(n, p) for n, p in named if id(p) not in before])


class _DistributedAdasum(_Distributed):
    """Combines what the optimizer would add to the parameters, instead of gradients."""

    _process_set: ProcessSet
    _compression: Any
    _name: str

    def synchronize(self) -> None:
        """Nothing: steps are combined, not gradients."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Not there with Adasum.

        Raises:
          AssertionError: always.
        """
        raise AssertionError("with op=hvd.Adasum a step cannot skip its synchronization")
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step with this rank's gradients, and combines the steps of all ranks.

        Args:
          closure: as of the optimizer that is wrapped.

        Raises:
          HorovodInternalError: an operation has failed; parameters are those after the own step.
        """
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        before = [p.detach().clone() for p in parameters]
        loss = super(_Distributed, self).step(closure)
        with torch.no_grad():
            pairs = [
                self._compression.compress(p.detach() - old) for p, old in zip(parameters, before)
            ]
            call = Starter(f"{self._name}.delta", self._process_set).grouped_allreduce(
                [delta for delta, _ in pairs], Reduction(Adasum), in_place=True
            )
            for p, old, delta, (_, context) in zip(parameters, before, call.result(), pairs):
                p.copy_(old + self._compression.decompress(delta, context))
        return loss


def _check_named(optimizer: torch.optim.Optimizer, named: Any) -> Named | None:
    """The named parameters as a list.

    Raises:
      InvalidArgumentError: no pairs of names and parameters, a name twice, or parameters of the
        optimizer are missing.
    """
    if named is None:
        return None
    listed = list(named)
    for one in listed:
        if not isinstance(one, tuple) or len(one) != 2 or not isinstance(one[1], torch.Tensor):
            raise InvalidArgumentError(
                f"named_parameters has {type(one).__name__} {str(one)[:60]!r}; it must be a "
                "sequence of tuples (name, parameter), as model.named_parameters() gives it"
            )
    names = [name for name, _ in listed]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidArgumentError(
            f"named_parameters has names more than once: {', '.join(twice)}; give each parameter "
            "a name of its own"
        )
    known = {id(p) for _, p in listed}
    missing = [
        f"parameter {i} of group {g}, {list(p.shape)}"
        for g, group in enumerate(optimizer.param_groups)
        for i, p in enumerate(group["params"])
        if id(p) not in known
    ]
    if missing:
        raise InvalidArgumentError(
            f"named_parameters was given, but lacks {len(missing)} of the optimizer's parameters "
            f"({'; '.join(missing[:5])}); pass model.named_parameters() of all models it trains"
        )
    return listed


def _named_parameters(optimizer: torch.optim.Optimizer, known: Named | None) -> Named:
    groups = optimizer.param_groups
    if known is None:
        return [
            (f"group{g}.parameter{i}", p)
            for g, group in enumerate(groups)
            for i, p in enumerate(group["params"])
        ]
    mine = {id(p) for group in groups for p in group["params"]}
    return [(name, p) for name, p in known if id(p) in mine]


def _check_groups(groups: Any, num_groups: int) -> None:
    if num_groups:
        warnings.warn("num_groups has become groups", DeprecationWarning, stacklevel=3)
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
        raise InvalidArgumentError("groups must be lists of parameters, and has something else")
    if len({id(p) for p in listed}) < len(listed):
        raise InvalidArgumentError("groups has a parameter more than once")


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
    """An optimizer of the same class whose `step` takes gradients averaged over all ranks.

    Gradients are averaged while the backward pass runs, in Herring's planned rounds (compressors of
    the caller's own: tensor by tensor). Making it is collective, as parameters are compared; it
    leaves their values alone, so call `broadcast_parameters` before training. A rank alone, or one
    that is not in the process set, steps by itself.

    Args:
      optimizer: any torch optimizer; what it knows is shared, and it is not to be used any more.
      named_parameters: `model.named_parameters()`, for messages and names of operations.
      compression: `Compression.none`, `Compression.fp16` (float32 gradients travel between nodes in
        16 bits and are added in 32) or a class like these.
      backward_passes_per_step: gradients of so many backward passes add up before a step.
      op: Average, Sum or Adasum (combines the steps of a power of two of ranks).
      gradient_predivide_factor: no meaning: sums cannot overflow before they are divided.
      num_groups: older than `groups`.
      groups: checked, and without meaning: gradients share fusion buffers anyway.
      sparse_as_dense: make sparse gradients dense; else the rows they have are exchanged, as
        always with SparseAdam, which takes no dense ones.
      process_set: who takes part.

    Returns:
      The optimizer, with `synchronize()`, `skip_synchronize()` and
      `set_backward_passes_per_step()`.

    Raises:
      InvalidArgumentError: `named_parameters` has a name twice or lacks parameters; another option
        that is impossible.
      MismatchError: the parameters differ between ranks.
    """
    check_gradient_options(op, gradient_predivide_factor)
    if isinstance(optimizer, _Distributed):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
    check_passes(backward_passes_per_step)
    _check_groups(groups, num_groups)
    known = _check_named(optimizer, named_parameters)
    base = _DistributedAdasum if op == Adasum else _Distributed
    made_of: tuple[Any, ...] = (base, type(optimizer))
    kind: Any = type(type(optimizer).__name__, made_of, {"__doc__": base.__doc__})
    wrapper = kind.__new__(kind)
    # Schedulers made before have put their own `step` there, which would pass ours by.
    wrapper.__dict__.update(
        {key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")}
    )
    wrapper._gradients = None
    wrapper._known = known
    wrapper._synchronizes = True
    wrapper._synchronized = False
    wrapper.backward_passes_per_step = backward_passes_per_step
    wrapper.op, wrapper.process_set = op, process_set
    named = _named_parameters(optimizer, known)
    wrapper._parameter_names = {p: name for name, p in named}
    # SparseAdam takes sparse gradients only: the rows of all ranks, which are the same sums.
    takes_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    densify = sparse_as_dense and not takes_sparse
    herring.rank()  # a job is needed
    if process_set is not global_process_set and process_set.included() is False:
        if op == Adasum:
            raise InvalidArgumentError(f"rank {herring.rank()} is not in {process_set}")
        return wrapper
    group = group_of(process_set)
    name = name_of_next("horovod.DistributedOptimizer", group)
    if op == Adasum:
        require_power_of_two(process_set.size() or 1)
        wrapper._process_set, wrapper._compression, wrapper._name = process_set, compression, name
        return wrapper
    if process_set.size() == 1:
        return wrapper
    if compression in (Compression.none, Compression.fp16):
        wrapper._gradients = PlannedGradients(
            named,
            name=name,
            passes=backward_passes_per_step,
            sums=op == Sum,
            half=compression is Compression.fp16,
            densify=densify,
            sparse=[p for _, p in named] if takes_sparse else [],
            process_set=process_set,
            relist=lambda: None,
        )
    else:
        wrapper._gradients = TensorGradients(
            named,
            name=name,
            passes=backward_passes_per_step,
            op=op,
            scales=(1 / gradient_predivide_factor, gradient_predivide_factor),
            compression=compression,
            densify=densify,
            process_set=process_set,
        )
    return wrapper
