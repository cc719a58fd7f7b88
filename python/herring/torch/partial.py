"""Eager SGD: training in rounds that do not wait for everybody (partial collectives, section 5).

A step's gradients are contributed as one whole when the backward pass is through; the results of
all rounds, also of those that this rank missed, are applied one after the other on every rank. So
replicas never differ, and no gradient is lost.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.arguments import count_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.partial import (
    PartialReduction,
    Quorum,
    Replay,
    RoundInfo,
    RoundStatistics,
    is_partial,
)
from herring.errors import InvalidArgumentError
from herring.torch.ownership import Pausable, claim, collect, release
from herring.torch.tensors import describe, dtype_name


class PartialReducer(Pausable):
    """Contributes gradients to rounds and shows the results of rounds as gradients.

    The array of the series holds all gradients (float64 if any parameter is, else float32), and
    behind them how many workers' gradients each parameter has in the result, so that one which
    nobody used keeps `.grad` None.

    Attributes:
      rounds: rounds applied; the same number means the same parameters on every rank.
      contributors: workers whose gradients are in the last result.
      statistics: who was in which round.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        sync: str | Quorum | Replay,
        digest_every: int = 100,
        group: Group | None = None,
    ) -> None:
        """Compares the parameters across ranks (collective).

        Args:
          named_parameters: as for `GradientReducer`.
          name: the same on every rank, different for each reducer.
          sync: "solo", "majority", a `Quorum` or a `Replay`.
          digest_every: rounds after which a digest of the parameters goes with the contribution,
            and is compared; 0: never.
          group: whose workers take part; None: all.

        Raises:
          InvalidArgumentError: a parameter that cannot be averaged, or a value out of range.
          MismatchError: the parameters or options differ between ranks.
        """
        digest_every = count_of(digest_every, "digest_every")
        self.name = name
        self.rounds = 0
        self.contributors = 0
        self.statistics = RoundStatistics()
        self._sync = sync
        self._group = group
        self._digest_every = digest_every
        self._names, self._parameters = collect(named_parameters, self)
        require_agreement(
            [
                f"sync={sync!r} digest_every={digest_every}",
                *(describe(n, p) for n, p in zip(self._names, self._parameters)),
            ],
            what="entry",
            name=f"{name}.parameters",
            group=group,
        )
        double = any(p.dtype == torch.float64 for p in self._parameters)
        self._dtype = torch.float64 if double else torch.float32
        elements = sum(p.numel() for p in self._parameters)
        self._mine = torch.zeros(elements + len(self._parameters), dtype=self._dtype)
        self._result = torch.zeros_like(self._mine)
        self._used = slice(elements, None)
        self._places: list[slice] = []
        start = 0
        for parameter in self._parameters:
            self._places.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        self._generation = 0
        self._series: PartialReduction | None = None
        self.pending = False  # a backward pass has produced gradients that are not contributed
        claim(self._parameters, self)
        try:
            self._open()
        except BaseException:
            release(self._parameters, self)
            raise
        self._removals = [
            p.register_post_accumulate_grad_hook(self._produced) for p in self._parameters
        ]

    def _open(self) -> PartialReduction:
        if self._series is None:
            self._series = PartialReduction(
                len(self._mine),
                dtype_name(self._dtype),
                sync=self._sync,
                name=f"{self.name}.rounds{self._generation}",
                statistics=self.statistics,
                group=self._group,
            )
            self._generation += 1
        return self._series

    def _produced(self, _parameter: torch.Tensor) -> None:
        if self.enabled:
            self.pending = True

    def _gather(self) -> None:
        used = self._mine[self._used]
        for index, (parameter, place) in enumerate(zip(self._parameters, self._places)):
            gradient = parameter.grad
            used[index] = gradient is not None
            if gradient is None:
                self._mine[place].zero_()
            else:
                if gradient.layout != torch.strided:
                    gradient = gradient.to_dense()
                self._mine[place].view(parameter.shape).copy_(gradient.detach())
        self.pending = False

    def _show(self) -> None:
        used = self._result[self._used].tolist()
        for parameter, place, share in zip(self._parameters, self._places, used):
            if share == 0:
                parameter.grad = None
                continue
            # A copy: the user may keep it, and the next result comes to the same place.
            view = self._result[place].view(parameter.shape)
            parameter.grad = view.to(device=parameter.device, dtype=parameter.dtype, copy=True)

    def _note(self, info: RoundInfo) -> None:
        self.contributors = len(info.contributors)
        self._show()

    def _applied(self, series: PartialReduction) -> None:
        self.rounds += 1
        if self._digest_every and self.rounds % self._digest_every == 0:
            series.digest(self.digest())

    def digest(self) -> int:
        """64 bits of a hash over all parameters; equal on ranks that have applied equal rounds."""
        state = hashlib.blake2b(digest_size=8)
        for parameter in self._parameters:
            flat = parameter.detach().cpu().contiguous().view(-1).view(torch.uint8)
            state.update(flat.numpy())
        return int.from_bytes(state.digest(), "little")

    def steps(self) -> Iterator[RoundInfo]:
        """Contributes this step's gradients, and shows one result after the other in `.grad`.

        Results of rounds that were missed come first; then nothing is waited for, and the gradients
        go to the round that closes next. Otherwise the next round is waited for.

        Yields:
          What is known about the round; apply `.grad` before asking for the next one.
        """
        series = self._open()
        self._gather()
        with contextlib.closing(series.step(self._mine.numpy(), self._result.numpy())) as results:
            for info in results:
                self._note(info)
                try:
                    yield info
                finally:  # also for a caller that leaves its loop
                    self._applied(series)

    def flush(self) -> Iterator[RoundInfo]:
        """As `steps`, and ends the series; shows the results of all rounds until all ranks flush.

        Begun again, by a caller that left its loop, it goes on where it was.
        """
        series = self._open()
        if self.pending:
            self._gather()
        else:
            self._mine.zero_()
        self._result.copy_(self._mine)
        for info in series.flush(self._result.numpy()):
            self._note(info)
            if series.ended:
                self._series = None
            try:
                yield info
            finally:
                self.rounds += 1

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._removals:
            handle.remove()
        self._removals = []
        release(self._parameters, self)


def wants_rounds(
    sync: str | Quorum | Replay,
    wire_dtype: str | torch.dtype | None,
    buffer_bytes: int,
    group: Group | None,
) -> bool:
    """Whether gradients are exchanged in rounds that do not wait for all.

    Raises:
      InvalidArgumentError: an unknown `sync`, or options that have no meaning in rounds.
    """
    if not is_partial(sync, scope_of(group).size):
        return False
    if isinstance(sync, Replay) and group is not None:
        raise InvalidArgumentError(
            f"sync={sync!r} takes no group: a recording is of all ranks; with group= there are "
            "'full', 'solo', 'majority' and herring.Quorum"
        )
    if wire_dtype is not None or buffer_bytes:
        raise InvalidArgumentError(
            f"sync={sync!r} takes neither wire_dtype ({wire_dtype}) nor buffer_bytes "
            f"({buffer_bytes}): gradients travel as one whole"
        )
    return True


class InRounds:
    """What a wrapper tells of its rounds, where it was made with a partial `sync`."""

    name: str
    _partial: PartialReducer | None

    @property
    def round(self) -> int:
        """With a partial `sync`: rounds applied. Equal numbers mean equal parameters."""
        return self._need_partial().rounds

    @property
    def statistics(self) -> RoundStatistics:
        """With a partial `sync`: who was in which round, who was late."""
        return self._need_partial().statistics

    def _need_partial(self) -> PartialReducer:
        if self._partial is None:
            raise InvalidArgumentError(f"{self.name} was made with sync='full'")
        return self._partial
