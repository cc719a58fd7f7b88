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
    from herring.base.parts import install_command

    raise ImportError(
        f"herring.keras needs Keras 3 and one of its backends: {install_command('keras')} and "
        "tensorflow, jax or torch"
    ) from _error
if int(_keras.__version__.split(".")[0]) < 3:
    raise ImportError(
        f"herring.keras needs Keras 3; here is {_keras.__version__}: pip install -U 'keras>=3'"
    )

from herring import allreduce
from herring.arrays.face import *  # noqa: F403
from herring.arrays.face import __all__ as __all__
from herring.keras import callbacks
from herring.keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    FlushCallback,
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    RoundStatisticsCallback,
    StepSecondsCallback,
    broadcast_model,
    on_root,
)
from herring.keras.elastic import (
    CommitStateCallback,
    State,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from herring.keras.optimizer import DistributedOptimizer, is_distributed, load_model

__all__ = [
    *__all__,
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "DistributedOptimizer",
    "FlushCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "RoundStatisticsCallback",
    "State",
    "StepSecondsCallback",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "allreduce",
    "broadcast_model",
    "callbacks",
    "is_distributed",
    "load_model",
    "on_root",
]
