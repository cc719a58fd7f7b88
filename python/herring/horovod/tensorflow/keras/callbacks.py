"""Horovod's callbacks, those of `herring.horovod.keras`."""

from herring.horovod.keras.callbacks import *  # noqa: F403
from herring.horovod.keras.callbacks import __all__ as __all__
