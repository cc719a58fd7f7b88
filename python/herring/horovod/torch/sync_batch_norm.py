"""SyncBatchNorm, batch normalization with statistics over the samples of all ranks."""

from __future__ import annotations

from typing import Any

from herring.arrays.groups import Group
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of
from herring.torch import sync_batch_norm


class SyncBatchNorm(sync_batch_norm.SyncBatchNorm):
    """Batch normalization with statistics over the samples of all ranks in a process set.

    Args:
      num_features: number of channels.
      *arguments: further positional arguments of `torch.nn.BatchNorm1d`: eps, momentum, affine,
        track_running_stats ...
      **options: keyword arguments of `torch.nn.BatchNorm1d`.
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

    def _group(self) -> Group | None:
        return group_of(self.process_set)
