"""Horovod's API for TensorFlow 2: ``import herring.horovod.tensorflow as hvd``.

See docs/horovod.md.
"""

from typing import Any

import herring.tensorflow as _needed  # noqa: F401 - says what to install if it is missing
from herring.horovod.common.exceptions import HostsUpdatedInterrupt
from herring.horovod.common.util import check_extension, gpu_available
from herring.horovod.tensorflow import elastic
from herring.horovod.tensorflow.compression import Compression
from herring.horovod.tensorflow.functions import *  # noqa: F403
from herring.horovod.tensorflow.functions import __all__ as _of_functions
from herring.horovod.tensorflow.mpi_ops import *  # noqa: F403
from herring.horovod.tensorflow.mpi_ops import __all__ as __all__
from herring.horovod.tensorflow.tape import (
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from herring.horovod.tensorflow.util import _executing_eagerly as _executing_eagerly
from herring.horovod.tensorflow.util import refs_to_vars, vars_to_refs

# Names that need Keras, which is imported when one of them is first used.
_OF_KERAS = {
    "DistributedOptimizer": "optimizer",
    "SyncBatchNormalization": "sync_batch_norm",
}

__all__ = [
    *__all__,
    *_OF_KERAS,
    *_of_functions,
    "Compression",
    "DistributedGradientTape",
    "HostsUpdatedInterrupt",
    "PartialDistributedGradientTape",
    "check_extension",
    "elastic",
    "gpu_available",
    "refs_to_vars",
    "vars_to_refs",
]


def __getattr__(name: str) -> Any:
    if name in _OF_KERAS:
        import importlib

        module = importlib.import_module(f"{__name__}.{_OF_KERAS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
