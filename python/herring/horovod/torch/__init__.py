"""Horovod's API for PyTorch: ``import herring.horovod.torch as hvd``.

Functions whose name ends with ``_`` write into the tensors given; other functions return new
tensors. Functions with ``async`` in their name return an integer handle for `synchronize` and
`poll`; until then, do not touch a tensor that they write into. Operations match across ranks by
`name`; without a name, the n-th call of a kind matches the n-th call on every other rank. Only the
ranks of `process_set` call a function. Autograd tracks the functions that wait and return new
tensors (`allreduce`, `allgather`, ...); gradients are averaged over ranks as in Horovod.

A call that one rank refuses, or in which ranks disagree, fails with the same error on all ranks;
later calls succeed. See docs/horovod.md.
"""

from herring.horovod.common.exceptions import HostsUpdatedInterrupt
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.common.util import check_extension
from herring.horovod.torch import elastic
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.functions import broadcast_optimizer_state, broadcast_parameters
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
