"""Horovod's API for tf.keras, which is Keras 3: ``import herring.horovod.tensorflow.keras as hvd``.

The module contains the names of `herring.horovod.keras`, with compressors for TensorFlow tensors.
See docs/horovod.md.
"""

import herring.keras as _needed  # noqa: F401 - says what to install if Keras is missing
from herring.horovod.keras.face import *  # noqa: F403
from herring.horovod.keras.face import __all__ as __all__
from herring.horovod.tensorflow.compression import Compression
from herring.horovod.tensorflow.keras import callbacks, elastic

__all__ = [*__all__, "Compression", "callbacks", "elastic"]
