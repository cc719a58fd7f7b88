"""Herring for MXNet 1.9: a trainer that averages gradients, a KVStore, and parameter broadcast.

    import herring.mxnet as herring

    herring.init()
    herring.broadcast_parameters(net.collect_params())
    trainer = herring.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})

See docs/mxnet.md.
"""

try:
    import mxnet as _mxnet  # noqa: F401
except (ImportError, AttributeError) as _error:  # MXNet needs np.bool, which NumPy 1.24 removed.
    from herring.parts import install_command

    raise ImportError(
        f"herring.mxnet needs MXNet 1.9.1, which needs NumPy 1.23: {install_command('mxnet')} "
        f"({_error})"
    ) from _error

from herring import allreduce
from herring.face import *  # noqa: F403
from herring.face import __all__ as __all__
from herring.mxnet.kvstore import KVStore
from herring.mxnet.parameters import broadcast_parameters
from herring.mxnet.trainer import DistributedTrainer

__all__ = [
    *__all__,
    "DistributedTrainer",
    "KVStore",
    "allreduce",
    "broadcast_parameters",
]
