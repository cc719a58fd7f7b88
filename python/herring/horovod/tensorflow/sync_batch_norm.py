"""SyncBatchNormalization, batch normalization with statistics over the samples of all ranks."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import herring
from herring.horovod.common.operators import Sum
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.tensorflow import mpi_ops
from herring.horovod.tensorflow.graph import lasts


@keras.saving.register_keras_serializable(package="horovod")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with statistics over the batches of all ranks, which may differ in size.

    Args:
      *arguments: positional arguments of keras.layers.BatchNormalization.
      **options: keyword arguments of keras.layers.BatchNormalization.
    """

    def __init__(
        self, *arguments: Any, process_set: ProcessSet = global_process_set, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._herring_process_set = process_set

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        """Returns the mean and variance of the layer's inputs over all ranks, along its axes."""
        process_set = self._herring_process_set
        if not herring.is_initialized() or (process_set.size() == 1 and not lasts()):
            return super()._moments(inputs, mask)
        axes = self._reduction_axes
        if mask is None:
            weights = tf.ones_like(inputs)
        else:
            weights = tf.cast(tf.expand_dims(mask, -1), inputs.dtype) * tf.ones_like(inputs)
        sums = tf.stack(
            [
                tf.reduce_sum(weights, axes),
                tf.reduce_sum(inputs * weights, axes),
                tf.reduce_sum(tf.square(inputs) * weights, axes),
            ]
        )
        count, total, squares = tf.unstack(
            mpi_ops.allreduce(sums, op=Sum, process_set=process_set), num=3
        )
        count = tf.maximum(count, 1.0)
        mean = total / count
        return mean, tf.maximum(squares / count - tf.square(mean), 0.0)
