"""Elastic training with tf.keras, the same as in `herring.horovod.keras`."""

from herring.horovod.keras.elastic import *  # noqa: F403
from herring.horovod.keras.elastic import __all__ as __all__
