"""Horovod's API for PyTorch: ``import herring.horovod.torch as hvd``. See docs/horovod.md."""

from herring.horovod.common.exceptions import HostsUpdatedInterrupt
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.common.util import check_extension
from herring.horovod.torch import elastic
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.functions import (
    broadcast_optimizer_state,
    broadcast_parameters,
)
from herring.horovod.torch.mpi_ops import *  # noqa: F403
from herring.horovod.torch.mpi_ops import __all__ as __all__
from herring.horovod.torch.optimizer import DistributedOptimizer
from herring.horovod.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *__all__,
    "Compression",
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "check_extension",
    "elastic",
]
