"""Horovod's callbacks for tf.keras, the same as in `herring.horovod.keras`."""

from herring.horovod.keras.callbacks import *  # noqa: F403
from herring.horovod.keras.callbacks import __all__ as __all__
