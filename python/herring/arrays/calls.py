"""Names the calls of collectives on this rank, and refuses on all ranks a call that fails here."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from herring.arrays.arguments import Timeout, name_given
from herring.arrays.groups import Group, scope_of
from herring.arrays.names import has_joined, next_name
from herring.arrays.runtime import job
from herring.errors import HerringError, InvalidArgumentError, PeerLostError, ShutdownError


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """What any call of a collective may be given, as it goes from the face to the core."""

    name: str | None = None  # the operation's name; None means the next name of its kind
    timeout: Timeout = None  # the time until the operation fails; None means ``HERRING_TIMEOUT``
    group: Group | None = None  # the group that takes part; None means all ranks

    def named(self, kind: str) -> CallOptions:
        """Returns these options with the name that was given, checked, or the next of a kind."""
        return dataclasses.replace(self, name=named(self.name, kind, self.group))

    def part(self, name: str) -> CallOptions:
        """Returns the options of one of several operations that a call makes."""
        return dataclasses.replace(self, name=f"{self.name}.{name}")

    def refusing(self, kind: str) -> AbstractContextManager[str]:
        """Returns a context in which an exception refuses the call on all ranks (`called`)."""
        return called(kind, self.name, self.group)


@contextmanager
def called(kind: str, name: str | None, group: Group | None = None) -> Iterator[str]:
    """Yields the name of a call; an exception in the block refuses the call on all ranks.

    Args:
      kind: The collective in which the other ranks wait if this rank refuses.
      name: The operation's name; None means the next name of this kind in the group.
    """
    name = named(name, kind, group)
    try:
        yield name
    except Exception as error:
        refuse(kind, name, group, error)
        raise


def refuse(kind: str, name: str, group: Group | None, error: Exception) -> None:
    """Tells the other ranks that this rank does not make a call, and why."""
    if isinstance(error, (PeerLostError, ShutdownError)):
        return  # no rank is left to tell
    known = isinstance(error, HerringError)
    why = str(error) if known else f"{type(error).__name__}: {error}"
    with suppress(HerringError):
        job().refuse(kind, name, why, scope_of(group).handle)


def name_of_next(kind: str, group: Group | None) -> str:
    """Returns a name for the next operation of a kind in the group (None: among all ranks)."""
    scope_of(group)
    among = None if group is None else group.members().number
    # Names are numbered anew as soon as the join has a result. The core admits calls a moment
    # before that, and would admit one with an old name, for which no other rank waits.
    if has_joined(among):
        where = "" if group is None else f" in group '{group.name}'"
        raise InvalidArgumentError(
            f"'{kind}'{where} was called after join(); wait until join() has returned"
        )
    return next_name(kind if group is None else f"{group.name}.{kind}", among)


def named(name: str | None, kind: str, group: Group | None) -> str:
    """Returns the name that a caller gave, checked, or the next name of a kind in the group."""
    scope_of(group)
    return name_given(name) or name_of_next(kind, group)
