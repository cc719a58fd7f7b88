"""Horovod's API for MXNet 1.9: ``import herring.horovod.mxnet as hvd``. See docs/horovod.md."""

import herring.mxnet as _needed  # noqa: F401 - says what to install if MXNet is missing
from herring.horovod.common.exceptions import HostsUpdatedInterrupt
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.common.util import check_extension, gpu_available
from herring.horovod.mxnet.compression import Compression
from herring.horovod.mxnet.functions import broadcast_parameters
from herring.horovod.mxnet.mpi_ops import *  # noqa: F403
from herring.horovod.mxnet.mpi_ops import __all__ as __all__
from herring.horovod.mxnet.optimizer import DistributedOptimizer, DistributedTrainer

__all__ = [
    *__all__,
    "Compression",
    "DistributedOptimizer",
    "DistributedTrainer",
    "HostsUpdatedInterrupt",
    "allgather_object",
    "broadcast_object",
    "broadcast_parameters",
    "check_extension",
    "gpu_available",
]
