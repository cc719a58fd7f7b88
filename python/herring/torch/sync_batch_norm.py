"""SyncBatchNorm: batch normalization with the statistics of all ranks' samples."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.torch import functional
from herring.torch.compiled import untraced
from herring.torch.membership import Membership


class SyncBatchNorm(_BatchNorm):
    """Normalizes over the batches of all ranks in training, and like BatchNorm in evaluation.

    `torch.nn.SyncBatchNorm` refuses tensors on CPUs; this class takes them too. Ranks may have
    different numbers of samples, or none. A forward pass in training is collective, and so is the
    backward pass through it. Gradients of the input are those of the sum of all ranks' losses.
    Gradients of weight and bias are this rank's part, which a wrapper averages. Statistics are
    computed in float32, or in float64 if the input is float64.

    Args:
      num_features: The number of channels.
      *arguments: Further arguments of `torch.nn.BatchNorm1d`: eps, momentum, affine ...
      **options: Arguments of `torch.nn.BatchNorm1d` by name.

    Raises:
      InvalidArgumentError: This rank is not in the group. `forward` raises it for an input with
        fewer than 2 dimensions.
    """

    def __init__(
        self, num_features: int, *arguments: Any, group: Group | None = None, **options: Any
    ) -> None:
        super().__init__(num_features, *arguments, **options)
        self._membership = None if group is None else Membership(group)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, group: Group | None = None
    ) -> torch.nn.Module:
        """Replaces every BatchNorm inside a module by this class.

        Parameters, buffers and hooks stay the same objects, so an existing optimizer still has the
        module's parameters.

        Args:
          module: The module, which is changed in place unless it is a BatchNorm itself.

        Returns:
          The module, or its replacement if the module is a BatchNorm.

        Raises:
          InvalidArgumentError: A lazy BatchNorm has seen no batch yet, or this rank is not in the
            group.
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm):
            return cls._in_place_of(module, group)
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, group)
            if converted is not child:
                setattr(module, name, converted)
        return module

    @classmethod
    def _in_place_of(cls, norm: _BatchNorm, group: Group | None) -> SyncBatchNorm:
        if any(is_lazy(one) for one in norm._parameters.values()):
            raise InvalidArgumentError(
                f"{type(norm).__name__} does not know its number of features yet: pass a batch "
                "through the model before converting it"
            )
        made = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            affine=False,
            track_running_stats=False,
            group=group,
        )
        made.affine, made.track_running_stats = norm.affine, norm.track_running_stats
        made._parameters, made._buffers = norm._parameters, norm._buffers
        made._forward_hooks = norm._forward_hooks
        made._forward_pre_hooks = norm._forward_pre_hooks
        made.training = norm.training
        return made

    def _group(self) -> Group | None:
        return None if self._membership is None else self._membership.group()

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgumentError(
                f"SyncBatchNorm: the input has {input.dim()} dimensions; it must have 2 or more"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes an input of shape [samples, channels, ...]."""
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None) or self._size() == 1:
            return super().forward(input)
        wide = input if input.dtype == torch.float64 else input.float()
        mean, variance, count = self._statistics(wide)
        if self.training and self.running_mean is not None:
            self._track(mean.detach(), variance.detach(), count.detach())
        shape = (1, -1) + (1,) * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        if self.affine:
            scale = scale * self.weight
        found = (wide - mean.view(shape)) * scale.view(shape)
        if self.affine:
            found = found + self.bias.view(shape)
        return found.to(input.dtype)

    @untraced
    def _size(self) -> int:
        return scope_of(self._group()).size

    @untraced
    def _gathered(self, row: torch.Tensor) -> torch.Tensor:
        return functional.allgather(row, group=self._group())

    def _statistics(self, wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns mean and variance of each channel over all ranks, and the number of samples."""
        over = [0, *range(2, wide.dim())]
        shape = (1, -1) + (1,) * (wide.dim() - 2)
        channels = wide.shape[1]
        mine = wide.numel() // max(channels, 1)
        mean = wide.sum(over) / max(mine, 1)
        squares = (wide - mean.view(shape)).square().sum(over)
        row = torch.cat([mean, squares, mean.new_tensor([float(mine)])]).view(1, -1)
        means, sums, counts = self._gathered(row).split([channels, channels, 1], dim=1)
        counts = counts.detach()
        count = counts.sum()
        total = count.clamp(min=1.0)
        overall = (means * counts).sum(0) / total
        spread = sums.sum(0) + (counts * (means - overall).square()).sum(0)
        return overall, spread / total, count

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum: Any = self.momentum
        if momentum is None:
            momentum = (1.0 / self.num_batches_tracked).to(mean.dtype)
        with torch.no_grad():
            unbiased = variance * (count / (count - 1).clamp(min=1.0))
            momentum = momentum * (count > 0)  # Empty batches on all ranks change no statistics.
            for tracked, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                tracked.add_(((new - tracked) * momentum).to(tracked.dtype))
