"""Herring for Keras 3, on TensorFlow, JAX or PyTorch.

    import herring.keras as herring

    herring.init()
    model.compile(optimizer=herring.DistributedOptimizer(keras.optimizers.Adam()), ...)
    model.fit(..., callbacks=[herring.BroadcastGlobalVariablesCallback()])

See docs/tensorflow.md.
"""

try:
    import keras as _keras
except ImportError as _error:
    from herring.parts import install_command

    raise ImportError(
        f"herring.keras needs Keras 3 and one of its backends: {install_command('keras')} and "
        "tensorflow, jax or torch"
    ) from _error
if int(_keras.__version__.split(".")[0]) < 3:
    raise ImportError(
        f"herring.keras needs Keras 3; here is {_keras.__version__}: pip install -U 'keras>=3'"
    )

from herring import (
    allgather_object,
    allreduce,
    barrier,
    broadcast_object,
    init,
    is_initialized,
    local_rank,
    local_size,
    new_group,
    node_rank,
    num_nodes,
    rank,
    ranks_of_node,
    shutdown,
    size,
    stats,
)
from herring.arrays.groups import Group
from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    HerringError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
)
from herring.keras import callbacks
from herring.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    broadcast_model,
    on_root,
)
from herring.keras.optimizer import DistributedOptimizer, is_distributed, load_model

__all__ = [
    "AuthenticationError",
    "BroadcastGlobalVariablesCallback",
    "ConfigurationError",
    "DistributedOptimizer",
    "Group",
    "HerringError",
    "InvalidArgumentError",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "MismatchError",
    "PeerLostError",
    "ShutdownError",
    "TimeoutError",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast_model",
    "broadcast_object",
    "callbacks",
    "init",
    "is_distributed",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "new_group",
    "node_rank",
    "num_nodes",
    "on_root",
    "rank",
    "ranks_of_node",
    "shutdown",
    "size",
    "stats",
]
