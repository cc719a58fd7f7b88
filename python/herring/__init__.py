"""Herring: gradient averaging for data-parallel training through parameter servers.

    import herring

    herring.init()
    herring.allreduce(array)          # in place, over all ranks

For PyTorch see `herring.torch`, for the launcher ``herring run --help``.
"""

from __future__ import annotations

from typing import Any

from herring.errors import (
    AuthenticationError,
    ConfigurationError,
    HerringError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
)

__version__ = "0.1.0"

_LAZY = {
    "herring.runtime": (
        "abort",
        "init",
        "is_initialized",
        "local_rank",
        "local_size",
        "node_rank",
        "num_nodes",
        "rank",
        "shutdown",
        "size",
        "stats",
    ),
    "herring.collectives": (
        "Handle",
        "allgather",
        "allgather_object",
        "allreduce",
        "allreduce_async",
        "alltoall",
        "barrier",
        "broadcast",
        "broadcast_object",
        "empty",
        "reduce_scatter",
    ),
    "herring.partial": (
        "PartialReduction",
        "Quorum",
        "Replay",
        "RoundInfo",
        "RoundStatistics",
        "flush",
        "partial_statistics",
    ),
    "herring.planned": ("PlannedReduction",),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "AuthenticationError",
    "ConfigurationError",
    "HerringError",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "ShutdownError",
    "TimeoutError",
    "__version__",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    # The launcher imports the package without the core; the core loads with the first use.
    if name in _HOME:
        import importlib

        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'herring' has no attribute {name!r}")
