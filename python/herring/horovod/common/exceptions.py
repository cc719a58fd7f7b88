"""Horovod's exceptions, and the conversion of Herring's errors to them.

A failed collective raises an error that is both a `HorovodInternalError` and one of Herring's
errors. So ``except HorovodInternalError`` and, for example, ``except herring.PeerLostError`` both
catch the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from herring import errors
from herring.errors import HerringError, ShutdownError

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "NotInitializedError",
    "NotSupportedError",
    "as_horovod",
    "internal_errors",
]


class HorovodInternalError(RuntimeError):
    """A collective failed."""


class HostsUpdatedInterrupt(RuntimeError):
    """Workers wait to join an elastic job: `State.commit` and `check_host_updates` raise this.

    Attributes:
      skip_sync: the value passed to the constructor.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class NotSupportedError(HerringError, NotImplementedError):
    """A part of Horovod's API is not supported; the message says what to use instead."""


class NotInitializedError(ShutdownError, ValueError):
    """`init` has not been called, or `shutdown` has been called since."""


# `as_horovod` uses the first class that matches, so base classes come last.
_KINDS: dict[type[HerringError], type[HorovodInternalError]] = {
    kind: type(kind.__name__, (HorovodInternalError, kind), {"__doc__": kind.__doc__})
    for kind in (
        errors.PeerLostError,
        errors.TimeoutError,
        errors.MismatchError,
        ShutdownError,
        errors.InvalidArgumentError,
        errors.ConfigurationError,
        HerringError,
    )
}


def as_horovod(error: HerringError) -> Exception:
    """Converts an error of Herring to a `HorovodInternalError` that has the same class, too.

    A `NotSupportedError` stays what it is, because no collective has failed.
    """
    if isinstance(error, (HorovodInternalError, NotSupportedError)):
        return error
    for kind, both in _KINDS.items():
        if isinstance(error, kind):
            return both(*error.args)
    return HorovodInternalError(*error.args)


@contextmanager
def internal_errors() -> Iterator[None]:
    """Converts errors that Herring raises in the block to `HorovodInternalError`."""
    try:
        yield
    except HerringError as error:
        found = as_horovod(error)
        if found is error:
            raise
        raise found from error
