"""Herring for TensorFlow: averaged gradients, collectives on tensors, broadcast of variables.

    import herring.tensorflow as herring

    herring.init()
    ...
    tape = herring.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, variables)      # averages over all ranks

With `model.fit` see `herring.keras`. See docs/tensorflow.md.
"""

from typing import TYPE_CHECKING, Any

try:
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as _error:
    from herring.base.parts import install_command

    raise ImportError(
        f"herring.tensorflow needs TensorFlow 2.16 or newer: {install_command('tensorflow')}"
    ) from _error

from herring.arrays.face import *  # noqa: F403
from herring.arrays.face import __all__ as __all__
from herring.tensorflow.averaging import TensorAverager
from herring.tensorflow.functions import allgather, allreduce, broadcast, broadcast_variables
from herring.tensorflow.rounds import Rounds
from herring.tensorflow.tape import DistributedGradientTape

__all__ = [
    *__all__,
    "DistributedGradientTape",
    "Rounds",
    "TensorAverager",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
]


if not TYPE_CHECKING:  # otherwise type checkers would accept every name

    def __getattr__(name: str) -> Any:
        from herring import __all__ as of_herring
        from herring.base.habits import missing, moved

        if found := moved("herring.tensorflow", name):
            return found
        raise missing("herring.tensorflow", name, __all__, of_herring)
