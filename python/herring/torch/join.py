"""The `join` context, for ranks that have different numbers of batches."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import numpy as np
import torch

import herring
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain
from herring.errors import InvalidArgumentError
from herring.torch.state import broadcast_tensors


class JoinableModel(Protocol):
    """What a model needs so that `Join` can use it."""

    name: str
    _join: Join | None

    def _group(self) -> Group | None:
        """Returns the group that trains the model; None means all ranks."""

    def _recover(self) -> None:
        """Ends a round that an interrupted backward pass has left open."""

    def _shadow(self, root: int) -> None:
        """Takes part in a step of the others, with buffers of rank `root`, without contributing."""

    def _state(self) -> list[torch.Tensor]:
        """Returns parameters and buffers."""

    def _get_steps(self) -> int:
        """Returns how many steps optimizers have made with the model."""

    def _set_steps(self, steps: int) -> None:
        """Handles that the model has the parameters of a rank that has made so many steps."""


class Join:
    """The context of `DistributedDataParallel.join`, for ranks with different numbers of batches.

    Inside the block every forward pass whose gradients will be averaged begins with a small named
    all-reduce, in which each rank says whether it still has data. A rank that leaves the block
    keeps answering and takes part in the other ranks' rounds without contributing, until all ranks
    have left. Averages are over the ranks that contributed. At the end all ranks get the parameters
    and buffers of one rank: the lowest one with the most steps. For the optimizer's state call
    `broadcast_optimizer_state(optimizer, join.last)`. If the model has a group, all of this happens
    inside the group.

    Attributes:
      steps: The number of averaged steps of this rank.
      last: After the block, the rank whose parameters all ranks have; with a group, inside it.
    """

    def __init__(self, ddp: JoinableModel) -> None:
        self._ddp = ddp
        self.steps = 0
        self.last = 0

    def __enter__(self) -> Join:
        if self._ddp._join is not None:
            raise InvalidArgumentError("join() blocks of one model cannot be nested")
        self._ddp._join = self
        return self

    def active_ranks(self, *, active: bool) -> list[int]:
        """Returns the ranks that still have data (collective, once per averaged step)."""
        group = self._ddp._group()
        scope = scope_of(group)
        flags = np.zeros(scope.size, np.int32)
        flags[scope.rank] = active
        herring.allreduce(flags, "sum", name=f"{self._ddp.name}.join", group=group)
        self.steps += active
        return np.flatnonzero(flags).tolist()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ddp = self._ddp
        ddp._join = None
        if kind is not None:
            return  # this rank cannot follow the others any more; its error says why
        ddp._recover()
        while active := self.active_ranks(active=False):
            ddp._shadow(active[0])
        name, group = f"{ddp.name}.join", ddp._group()
        told = allgather_plain((self.steps, ddp._get_steps()), name=f"{name}.steps", group=group)
        self.last = max(range(len(told)), key=lambda place: told[place][0])
        ddp._set_steps(told[self.last][1])
        broadcast_tensors(ddp._state(), self.last, name=f"{name}.state", group=group)
