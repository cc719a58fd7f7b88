"""Names that Horovod's modules for Keras and for tf.keras share."""

from herring.horovod.common.exceptions import HostsUpdatedInterrupt
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.keras.optimizer import (
    DistributedOptimizer,
    PartialDistributedOptimizer,
    load_model,
)
from herring.horovod.keras.values import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    reducescatter,
)

__all__ = [
    *__all__,
    "DistributedOptimizer",
    "HostsUpdatedInterrupt",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "load_model",
    "reducescatter",
]
