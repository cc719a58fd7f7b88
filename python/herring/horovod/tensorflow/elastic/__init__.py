"""Elastic training with TensorFlow, as in Horovod. See docs/horovod.md."""

import importlib
from typing import Any

from herring.horovod.common.elastic import ObjectState, State, run
from herring.horovod.tensorflow.elastic.state import TensorFlowState

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


def __getattr__(name: str) -> Any:
    # Keras is imported when this name is first used.
    if name == "TensorFlowKerasState":
        return importlib.import_module(f"{__name__}.of_keras").TensorFlowKerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
