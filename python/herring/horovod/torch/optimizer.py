"""DistributedOptimizer, which makes any torch optimizer use gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

import herring
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common import elastic
from herring.horovod.common.adasum import require_power_of_two
from herring.horovod.common.operators import (
    Adasum,
    Average,
    check_gradient_options,
    check_passes,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.common.starter import Reduction
from herring.horovod.torch.compiled import untraced
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.distributed import Distributed, Options
from herring.horovod.torch.in_rounds import DistributedInRounds, rounds_asked
from herring.horovod.torch.starts import Starter
from herring.partial import Quorum, Replay, RoundInfo
from herring.torch.naming import listed, named_in, require_all


class _WithAdasum(Distributed):
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
        loss = super(Distributed, self).step(closure)
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


@untraced
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
    if isinstance(optimizer, Distributed):
        raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
    check_passes(backward_passes_per_step)
    _check_groups(groups, num_groups)
    known = listed(named_parameters)
    require_all(optimizer, known, frozen=True)
    herring.rank()  # Raises an error if this process is not in a job.
    rounds = rounds_asked(
        optimizer,
        op,
        compression,
        process_set,
        sync=sync,
        algorithm=algorithm,
        each_round=each_round,
        digest_every=digest_every,
    )
    options = Options(
        op,
        compression,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        rounds,
        each_round,
    )
    base = _WithAdasum if op == Adasum else Distributed if rounds is None else DistributedInRounds
    made_of: tuple[Any, ...] = (base, type(optimizer))
    kind: Any = type(type(optimizer).__name__, made_of, {"__doc__": base.__doc__})
    wrapper = kind.__new__(kind)
    # Existing schedulers have set their own `step` on the optimizer, which would bypass ours.
    wrapper.__dict__.update(
        {key: value for key, value in vars(optimizer).items() if key not in ("step", "zero_grad")}
    )
    if rounds is not None:
        # GradScaler must take each rank's scale out of what the rank contributes, and not leave it
        # to a fused optimizer, whose steps have the results of rounds.
        wrapper._step_supports_amp_scaling = False
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
