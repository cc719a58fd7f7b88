"""Eager SGD: training in rounds that do not wait for all workers (partial collectives, section 5).

A rank contributes the gradients of a step as one array when the backward pass has ended. Every rank
applies the results of all rounds in order, including rounds that it missed. Replicas therefore
never differ, and no gradient is lost.
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
from herring.torch.ranges import each_shown
from herring.torch.tensors import describe, dtype_name


class PartialReducer(Pausable):
    """Contributes gradients to rounds and writes the results of rounds to `.grad`.

    The array of the series has all gradients, in float64 if any parameter is float64, else in
    float32. Behind them it has, for each parameter, the share of workers with a gradient. A
    parameter that no worker used thus keeps `.grad` None.

    Attributes:
      rounds: The number of rounds applied. Ranks with equal numbers have equal parameters.
      contributors: The number of workers whose gradients are in the last result.
      statistics: Which workers were in which round.
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
          named_parameters: Names and parameters. Frozen, empty and repeated ones are left out.
          name: The reducer's name, the same on every rank and different for each reducer.
          sync: "solo", "majority", a `Quorum` or a `Replay`.
          digest_every: The number of rounds after which ranks compare a digest of the parameters; 0
            means never.
          group: The group that takes part; None means all workers.

        Raises:
          InvalidArgumentError: A parameter cannot be averaged, or a value is out of range.
          MismatchError: The parameters or options differ between ranks.
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
        self._mine = torch.zeros(elements + len(self._parameters), dtype=self._dtype, device="cpu")
        self._result = torch.zeros_like(self._mine)
        self._used = slice(elements, None)
        self._places: list[slice] = []
        start = 0
        for parameter in self._parameters:
            self._places.append(slice(start, start + parameter.numel()))
            start += parameter.numel()
        self._generation = 0
        self._series: PartialReduction | None = None
        self.pending = False  # whether gradients wait to be contributed
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
            # The user may keep the gradient, and the next result is written to the same memory.
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
        series = self._open()
        self._gather()
        with contextlib.closing(series.step(self._mine.numpy(), self._result.numpy())) as results:
            for info in each_shown(results, "round", self.name):
                self._note(info)
                try:
                    yield info
                finally:  # a caller may leave its loop early
                    self._applied(series)

    def flush(self) -> Iterator[RoundInfo]:
        """Ends the series; writes the results of all rounds to `.grad` until all ranks flush.

        If the caller left its loop, another call goes on where the last one stopped.

        Yields:
          What is known about the round. Apply `.grad` before asking for the next round.
        """
        series = self._open()
        if self.pending:
            self._gather()
        else:
            self._mine.zero_()
        self._result.copy_(self._mine)
        for info in each_shown(series.flush(self._result.numpy()), "round", self.name):
            self._note(info)
            if series.ended:
                self._series = None
            try:
                yield info
            finally:
                self.rounds += 1

    def retire(self) -> None:
        """Removes the hooks after the job has ended."""
        self.close()

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
    """Returns whether `sync` means rounds that do not wait for all workers.

    Raises:
      InvalidArgumentError: `sync` is unknown, or an option has no meaning in such rounds.
    """
    if not is_partial(sync, scope_of(group).size):
        return False
    if isinstance(sync, Replay) and group is not None:
        raise InvalidArgumentError(
            f"sync={sync!r} takes no group: a recording covers all ranks; group= allows "
            "'full', 'solo', 'majority' and herring.Quorum"
        )
    if wire_dtype is not None or buffer_bytes:
        raise InvalidArgumentError(
            f"sync={sync!r} takes neither wire_dtype ({wire_dtype}) nor buffer_bytes "
            f"({buffer_bytes}): gradients are sent as one array"
        )
    return True


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
