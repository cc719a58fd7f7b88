"""Horovod's exceptions, and how Herring's become them.

What fails while ranks work together is raised as a `HorovodInternalError` that is at the same time
Herring's own error: ``except HorovodInternalError`` and ``except herring.PeerLostError`` both catch
it.
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
    """A collective has failed."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed. Never raised: a job keeps its workers.

    Attributes:
      skip_sync: as in Horovod.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


class NotSupportedError(HerringError, NotImplementedError):
    """Something of Horovod's that is not there; the message says what to use instead."""


class NotInitializedError(ShutdownError, ValueError):
    """`init` has not been called, or `shutdown` has."""


# The first that fits is taken.
_KINDS: dict[type[HerringError], type[HorovodInternalError]] = {
    kind: type(kind.__name__, (HorovodInternalError, kind), {"__doc__": kind.__doc__})
    for kind in (
        errors.PeerLostError,
        errors.TimeoutError,
        errors.MismatchError,
        ShutdownError,
        errors.InvalidArgumentError,
        HerringError,
    )
}


def as_horovod(error: HerringError) -> Exception:
    """The same error as a `HorovodInternalError`."""
    if isinstance(error, HorovodInternalError):
        return error
    for kind, both in _KINDS.items():
        if isinstance(error, kind):
            return both(*error.args)
    return HorovodInternalError(*error.args)


@contextmanager
def internal_errors() -> Iterator[None]:
    """What Herring raises in the block becomes a `HorovodInternalError`."""
    try:
        yield
    except HerringError as error:
        found = as_horovod(error)
        if found is error:
            raise
        raise found from error
