"""SyncBatchNorm: batch normalization with the statistics of all ranks' samples."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from herring.errors import InvalidArgumentError
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.torch import functional

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Normalizes over the batches of all ranks in training; as BatchNorm in evaluation.

    Ranks may have different numbers of samples. A forward pass in training is collective, and so is
    the backward pass through it: gradients are those of the sum of all ranks' losses.

    Args:
      num_features: channels.
      process_set: who takes part.
      **options: of `torch.nn.BatchNorm1d`: eps, momentum, affine, track_running_stats ...
    """

    def __init__(
        self,
        num_features: int,
        *arguments: Any,
        process_set: ProcessSet = global_process_set,
        **options: Any,
    ) -> None:
        super().__init__(num_features, *arguments, **options)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgumentError(
                f"SyncBatchNorm: the input has {input.dim()} dimensions; it must have 2 or more"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes [samples, channels, ...]."""
        self._check_input_dim(input)
        whole = self.training or self.running_mean is None
        if not whole or self.process_set.size() == 1:
            return super().forward(input)
        mean, variance, count = self._statistics(input)
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), variance.detach(), count)
        shape = (1, -1) + (1,) * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        found = (input - mean.to(input.dtype).view(shape)) * scale.to(input.dtype).view(shape)
        return found + self.bias.to(found.dtype).view(shape) if self.affine else found

    def _statistics(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Mean and variance of each channel over all ranks, and the number of samples."""
        wide = batch if batch.dtype == torch.float64 else batch.float()
        over = [0, *range(2, batch.dim())]
        shape = (1, -1) + (1,) * (batch.dim() - 2)
        mine = batch.numel() // max(batch.shape[1], 1)
        mean = wide.sum(over) / max(mine, 1)
        squares = (wide - mean.view(shape)).square().sum(over)
        row = torch.cat([mean, squares, mean.new_tensor([float(mine)])]).view(1, -1)
        every = functional.allgather(row, group=group_of(self.process_set))
        means, sums, counts = every.split([len(mean), len(mean), 1], dim=1)
        counts = counts.detach()
        total = counts.sum()
        overall = (means * counts).sum(0) / total
        spread = sums.sum(0) + (counts * (means - overall).square()).sum(0)
        return overall, spread / total, float(total)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        with torch.no_grad():
            unbiased = variance * (count / max(count - 1, 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
