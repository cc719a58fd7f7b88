"""Horovod's API for TensorFlow 2: ``import herring.horovod.tensorflow as hvd``.

Operations match across ranks by `name`. Without a name, the n-th eager call of a kind matches the
n-th call on every other rank; in a graph, operations match by the name of their tensor. Only the
ranks of `process_set` call a function. Tapes record the functions; gradients are averaged over
ranks as in Horovod. A call that one rank refuses, or in which ranks disagree, fails with a
`HorovodInternalError` that is the same on all ranks. XLA cannot compile collectives. In a graph,
TensorFlow raises its own errors (tf.errors.OpError), which contain Herring's message.

See docs/horovod.md.

Raises:
  InvalidArgumentError: The operator, dtype or layout is not supported, XLA compiles the function,
    or the process set is not registered or does not contain this rank. In an eager call, the error
    is also a tf.errors.InvalidArgumentError.
  ShutdownError: `init` was not called.
  HorovodInternalError: Ranks disagree (also a MismatchError and, in an eager call, a
    tf.errors.FailedPreconditionError), a rank was lost (also a PeerLostError), or a rank did not
    call in time (also a TimeoutError). In a graph, the error is a tf.errors.OpError.
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
from herring.horovod.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from herring.horovod.tensorflow.util import _executing_eagerly as _executing_eagerly
from herring.horovod.tensorflow.util import refs_to_vars, vars_to_refs

# Names that need Keras, which is imported when one of them is first used.
_OF_KERAS = {"DistributedOptimizer": "optimizer", "SyncBatchNormalization": "sync_batch_norm"}

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
