"""Optimizers that make one step for each partial round."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from herring.arrays import runtime
from herring.arrays.calls import name_of_next
from herring.errors import InvalidArgumentError
from herring.horovod.common.operators import OPERATORS, Adasum
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.horovod.torch.compiled import level_of_program, untraced
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.distributed import Distributed
from herring.horovod.torch.gradients import RoundGradients
from herring.partial import Quorum, Replay, RoundInfo
from herring.torch.naming import named_in
from herring.torch.partial import RoundOptions, require_steps, round_options


class DistributedInRounds(Distributed):
    """Makes one step for each partial round, with the result of the round."""

    @property
    def _sync(self) -> Any:
        return self._options.rounds.sync if self._options.rounds else "full"

    def _average(self) -> None:
        options = self._options
        process_set = options.process_set
        if process_set is not global_process_set and process_set.included() is False:
            return
        assert options.rounds is not None
        self._gradients = RoundGradients(
            named_in(self, self._known),
            name=name_of_next("horovod.DistributedOptimizer", group_of(process_set)),
            passes=self.backward_passes_per_step,
            options=options.rounds,
        )

    def synchronize(self) -> None:
        """Raises an error, because a step may have the results of several rounds.

        Raises:
          InvalidArgumentError: always.
        """
        raise InvalidArgumentError(
            f"synchronize() is for sync='full'; with sync={self._sync!r} step() makes one "
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
            super(Distributed, self).step()
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
            self._gradients.drop_overflow()
            self._step_in(self._gradients.flush())

    def _step_in(self, rounds: Iterator[RoundInfo]) -> None:
        each_round = self._options.each_round
        for info in rounds:
            if each_round is not None:
                each_round(info)
            super(Distributed, self).step()

    @untraced
    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """Clears gradients; the arguments are those of the wrapped optimizer.

        Raises:
          AssertionError: called after `backward()` but before `step()`, unless `GradScaler` has
            skipped the step because a gradient is infinite.
        """
        gradients = self._gradients
        if (
            gradients is None
            or gradients.abandon(level_of_program())
            or not gradients.pending
            or gradients.drop_overflow()
        ):
            return super(Distributed, self).zero_grad(*arguments, **options)
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
            f"add_param_group is for sync='full', not {self._sync!r}: ranks may be at "
            "different rounds. Add the group before wrapping the optimizer"
        )


def rounds_asked(
    optimizer: torch.optim.Optimizer,
    op: int,
    compression: Any,
    process_set: ProcessSet,
    *,
    sync: str | Quorum | Replay,
    algorithm: str,
    each_round: Callable[[RoundInfo], None] | None,
    digest_every: int,
) -> RoundOptions | None:
    """Returns the options of partial rounds; None if `sync` is "full".

    Raises:
      InvalidArgumentError: another option has no meaning together with `sync`.
    """
    outside = process_set is not global_process_set and process_set.included() is False
    group = None if process_set is global_process_set or outside else group_of(process_set)
    found = round_options(
        sync,
        group,
        algorithm=algorithm,
        results="every",
        synchronize_every=0,
        digest_every=digest_every,
        wire_dtype=None,
        buffer_bytes=0,
    )
    if found is None:
        if each_round is not None:
            raise InvalidArgumentError(
                "each_round is for sync='solo', 'majority', a herring.Quorum or a herring.Replay; "
                "with sync='full' call synchronize() and read the averages before step()"
            )
        return None
    refused = {
        "op=hvd.Adasum (Average or Sum)": op == Adasum,
        "a compression (hvd.Compression.none)": compression is not Compression.none,
        "elastic training (all ranks would commit equally often)": runtime.is_elastic(),
    }
    for what, given in refused.items():
        if given:
            raise InvalidArgumentError(f"sync={sync!r} does not take {what}")
    require_steps(optimizer, sync)
    return dataclasses.replace(found, op=OPERATORS[op])
