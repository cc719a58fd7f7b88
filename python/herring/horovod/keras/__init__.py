"""Horovod's API for Keras 3, on any backend: ``import herring.horovod.keras as hvd``.

See docs/horovod.md.
"""

import herring.keras as _needed  # noqa: F401 - says what to install if Keras is missing
from herring.horovod.keras import callbacks, elastic
from herring.horovod.keras.compression import Compression
from herring.horovod.keras.face import *  # noqa: F403
from herring.horovod.keras.face import __all__ as __all__

__all__ = [*__all__, "Compression", "callbacks", "elastic"]
