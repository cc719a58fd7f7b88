"""Herring for PyTorch: collectives on tensors, and gradients averaged during the backward pass.

    import herring.torch as herring

    herring.init()
    model = herring.DistributedDataParallel(model)
    ...  # the unchanged training loop, on this rank's part of the data

Collectives have the arguments and errors of those of `herring`. Their tensors must be dense and
contiguous. See docs/pytorch.md.

Args:
  root: The rank whose values all ranks get; with `group`, a rank inside it.
  op: "average" (floats only), "sum", "min", "max" or "product", or a `torch.distributed.ReduceOp`.
"""

from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401
except ImportError as _error:
    from herring.base.parts import install_command

    raise ImportError(
        f"herring.torch needs PyTorch 2.9 or newer: {install_command('torch')}"
    ) from _error

from herring.arrays.face import *  # noqa: F403
from herring.arrays.face import __all__ as __all__
from herring.partial import Quorum, Replay, RoundInfo, RoundStatistics
from herring.torch import backend, functional, left_out  # noqa: F401
from herring.torch.boards import StepLogger
from herring.torch.buckets import PlannedBuckets
from herring.torch.comm_hook import ddp_comm_hook
from herring.torch.ddp import DistributedDataParallel
from herring.torch.diloco import DiLoCo
from herring.torch.elastic import ElasticSampler, State
from herring.torch.functions import (
    Handle,
    allgather,
    allreduce,
    allreduce_async,
    alltoall,
    broadcast,
    broadcast_,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from herring.torch.hook_calls import ordered_comm_hook
from herring.torch.join import Join
from herring.torch.local_sgd import LocalSGD
from herring.torch.optimizer import DistributedOptimizer
from herring.torch.reducer import GradientReducer
from herring.torch.state import broadcast_optimizer_state, broadcast_parameters
from herring.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    *__all__,
    "DiLoCo",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "ElasticSampler",
    "GradientReducer",
    "Handle",
    "Join",
    "LocalSGD",
    "PlannedBuckets",
    "Quorum",
    "Replay",
    "RoundInfo",
    "RoundStatistics",
    "State",
    "StepLogger",
    "SyncBatchNorm",
    "allgather",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "backend",
    "broadcast",
    "broadcast_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_comm_hook",
    "functional",
    "gather",
    "ordered_comm_hook",
    "reduce",
    "reduce_scatter",
    "scatter",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept every name

    def __getattr__(name: str) -> Any:
        from herring import __all__ as of_herring
        from herring.base.habits import missing

        raise missing("herring.torch", name, __all__, of_herring)
