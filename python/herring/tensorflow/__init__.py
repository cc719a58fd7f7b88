"""Herring for TensorFlow: averaged gradients, collectives on tensors, broadcast of variables.

    import herring.tensorflow as herring

    herring.init()
    ...
    tape = herring.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, variables)      # averages over all ranks

With `model.fit` see `herring.keras`. See docs/tensorflow.md.
"""

from typing import Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as _error:
    from herring.base.parts import install_command

    raise ImportError(
        f"herring.tensorflow needs TensorFlow 2.16 or newer: {install_command('tensorflow')}"
    ) from _error

from herring.face import *  # noqa: F403
from herring.face import __all__ as __all__
from herring.tensorflow.averaging import TensorAverager
from herring.tensorflow.functions import allgather, allreduce, broadcast, broadcast_variables
from herring.tensorflow.tape import DistributedGradientTape

__all__ = [
    *__all__,
    "DistributedGradientTape",
    "DistributedOptimizer",  # noqa: F405 - imported with its first use
    "TensorAverager",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
]


def __getattr__(name: str) -> Any:
    # Keras, which needs this package, is imported with the first use.
    if name == "DistributedOptimizer":
        from herring.keras.optimizer import DistributedOptimizer

        return DistributedOptimizer
    raise AttributeError(f"module 'herring.tensorflow' has no attribute {name!r}")
