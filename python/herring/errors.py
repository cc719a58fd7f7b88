"""What can go wrong, as one hierarchy.

Everything Herring raises on purpose is a `HerringError`, so ``except herring.HerringError``
catches it all. Classes that have a close relative among Python's own exceptions inherit from it as
well: code that already expects a `ValueError` or a builtin `TimeoutError` needs no change.
"""

from __future__ import annotations

import builtins

__all__ = [
    "AuthenticationError",
    "ConfigurationError",
    "DeviceError",
    "HerringError",
    "InvalidArgumentError",
    "MismatchError",
    "PeerLostError",
    "ShutdownError",
    "TimeoutError",
]


class HerringError(RuntimeError):
    """Base of all errors raised by Herring.

    It is raised itself when something is broken: Herring has a bug, a process of the job has sent
    what no correct process sends, or the system lacks memory, threads or descriptors. The message
    says which of these it is, and what to do.
    """


class ConfigurationError(HerringError):
    """The environment, a setting or the cluster description is missing, wrong or contradictory."""


class AuthenticationError(HerringError):
    """A peer could not prove that it knows the job's secret, or we could not."""


class MismatchError(HerringError):
    """Ranks disagree about an operation: shape, dtype, operator, root or plan differ."""


class TimeoutError(HerringError, builtins.TimeoutError):
    """A deadline passed; the message names the operation, the round and the missing ranks."""


class PeerLostError(HerringError):
    """A worker or a server died or left while others depended on it."""


class InvalidArgumentError(HerringError, ValueError):
    """An array, a name or an option that the caller passed cannot be used."""


class DeviceError(HerringError):
    """A GPU or its driver has failed; the message names the GPU, the call and what it said."""


class ShutdownError(HerringError):
    """The operation was started after, or was overtaken by, `herring.shutdown`."""
