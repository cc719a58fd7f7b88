"""Training in which ranks average their parameters seldom (local SGD)."""

from __future__ import annotations

import torch

from herring.arrays.groups import Group
from herring.torch.diloco import DiLoCo
from herring.torch.tensors import TorchWireDType


def _average(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


class LocalSGD(DiLoCo):
    """Lets ranks train alone, and average their parameters after every so many steps.

        with herring.torch.LocalSGD(model, optimizer, every=20):
            ...  # the unchanged training loop

    It is `DiLoCo` with an outer optimizer that takes the average as it is. What travels is how far
    each rank has come, so few bits are enough.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer | None,
        *,
        every: int = 20,
        wire_dtype: TorchWireDType | None = None,
        error_feedback: bool = True,
        buffer_bytes: int = 0,
        digest_every: int = 10,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Checks the arguments, which are those of `DiLoCo`.

        Args:
          model: The model.
          inner_optimizer: The optimizer whose calls of `step` are counted, or None.
          every: The number of steps between two meetings.
          wire_dtype: What differences travel in between nodes.
          error_feedback: Whether what rounding to 8 bits loses is added to the next meeting.
          buffer_bytes: The size of a fusion buffer in bytes; 0 lets the plan choose.
          digest_every: The number of meetings after which ranks compare a digest; 0 means never.
          name: The name, the same on every rank, or None.
          group: The `herring.Group` of workers that meet; None means all workers.

        Raises:
          InvalidArgumentError: An argument has a wrong type or is out of range.
        """
        super().__init__(
            model,
            inner_optimizer,
            _average,
            every=every,
            wire_dtype=wire_dtype,
            error_feedback=error_feedback,
            buffer_bytes=buffer_bytes,
            digest_every=digest_every,
            name=name,
            group=group,
        )
