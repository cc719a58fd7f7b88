"""Elastic training with Keras, as in Horovod. See docs/horovod.md."""

from herring.horovod.common.elastic import ObjectState, State, run
from herring.horovod.keras.elastic.state import KerasState, TensorFlowKerasState
from herring.keras.elastic import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
