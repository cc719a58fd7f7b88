"""The part of elastic training that needs Keras, which is imported when it is first used."""

from herring.horovod.keras.elastic.state import TensorFlowKerasState

__all__ = ["TensorFlowKerasState"]
