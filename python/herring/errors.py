"""The exceptions that Herring raises, as one hierarchy.

Every exception that Herring raises on purpose is a `HerringError`, so ``except
herring.HerringError`` catches all of them. Some classes also inherit from the built-in exception
that is closest in meaning. Code that already expects a `ValueError` or a built-in `TimeoutError`
therefore needs no change.
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
    """The base class of all errors raised by Herring.

    The base class itself is raised when something is broken. Herring has a bug, a process of the
    job sent what no correct process sends, or the system lacks memory, threads or descriptors. The
    message says which of these happened, and what to do.
    """


class ConfigurationError(HerringError):
    """A setting, the environment or the cluster description is missing, wrong or contradictory."""


class AuthenticationError(HerringError):
    """A process could not prove to another that it knows the job's secret."""


class MismatchError(HerringError):
    """Ranks disagree about an operation: shape, dtype, operator, root or plan differ."""


class TimeoutError(HerringError, builtins.TimeoutError):
    """A deadline passed; the message names the operation, the round and the missing ranks."""


class PeerLostError(HerringError):
    """A worker or a server died, or left while other ranks depended on it."""


class InvalidArgumentError(HerringError, ValueError):
    """An array, a name or an option passed by the caller cannot be used."""


class DeviceError(HerringError):
    """A GPU or its driver failed; the message names the GPU, the call and the driver's answer."""


class ShutdownError(HerringError):
    """The operation was started after `herring.shutdown`, or was still under way when it ran."""
