"""Horovod's API for Keras 3, on any backend: ``import herring.horovod.keras as hvd``.

See docs/horovod.md.

Raises:
  InvalidArgumentError: An argument is invalid, the process set is not registered or does not
    contain this rank, or the backend's dtype (JAX: 32 bits) cannot hold the result.
  ShutdownError: `init` was not called.
  HorovodInternalError: Ranks disagree, or a rank was lost or did not call in time.
"""

import herring.keras as _needed  # noqa: F401 - says what to install if Keras is missing
from herring.horovod.keras import callbacks, elastic
from herring.horovod.keras.compression import Compression
from herring.horovod.keras.face import *  # noqa: F403
from herring.horovod.keras.face import __all__ as __all__

__all__ = [*__all__, "Compression", "callbacks", "elastic"]
