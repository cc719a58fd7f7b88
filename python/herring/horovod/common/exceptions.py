"""Horovod's exceptions, and the conversion of Herring's errors to them.

A failed collective raises an error that is both a `HorovodInternalError` and one of Herring's
errors. So ``except HorovodInternalError`` and, for example, ``except herring.PeerLostError`` both
catch the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from herring import errors


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


class NotSupportedError(errors.HerringError, NotImplementedError):
    """A part of Horovod's API is not supported; the message says what to use instead."""


class NotInitializedError(errors.ShutdownError, ValueError):
    """`init` has not been called, or `shutdown` has been called since."""


# Failed collectives raise the classes below, each both of Horovod's kind and of Herring's. They are
# classes of this module under their own names, so that pickle finds them: pools, Ray and Dask
# pickle what a worker raises.


class HerringError(HorovodInternalError, errors.HerringError):
    """A collective failed; the message says how."""


class PeerLostError(HorovodInternalError, errors.PeerLostError):
    """A collective failed: a worker or a server died, or left while other ranks depended on it."""


class TimeoutError(HorovodInternalError, errors.TimeoutError):
    """A collective failed: a deadline passed; the message names the missing ranks."""


class MismatchError(HorovodInternalError, errors.MismatchError):
    """A collective failed: ranks disagree about it."""


class ShutdownError(HorovodInternalError, errors.ShutdownError):
    """A collective failed: it was started after `shutdown`, or was still under way when it ran."""


class InvalidArgumentError(HorovodInternalError, errors.InvalidArgumentError):
    """A collective failed: an array, a name or an option cannot be used."""


class ConfigurationError(HorovodInternalError, errors.ConfigurationError):
    """A collective failed: a setting or the cluster's description is wrong."""


# `as_horovod` uses the first class that matches, so the base class comes last.
_KINDS: dict[type[errors.HerringError], type[HorovodInternalError]] = {
    errors.PeerLostError: PeerLostError,
    errors.TimeoutError: TimeoutError,
    errors.MismatchError: MismatchError,
    errors.ShutdownError: ShutdownError,
    errors.InvalidArgumentError: InvalidArgumentError,
    errors.ConfigurationError: ConfigurationError,
    errors.HerringError: HerringError,
}


def as_horovod(error: errors.HerringError) -> Exception:
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
    except errors.HerringError as error:
        found = as_horovod(error)
        if found is error:
            raise
        raise found from error
