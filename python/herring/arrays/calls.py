"""Calls of collectives on this rank: their names, and how one that cannot be made is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from herring.arrays.arguments import name_given
from herring.arrays.groups import Group, scope_of
from herring.arrays.names import next_name
from herring.arrays.runtime import job
from herring.errors import HerringError, PeerLostError, ShutdownError

__all__ = ["called", "name_of_next", "named", "refuse"]


@contextmanager
def called(kind: str, name: str | None, group: Group | None = None) -> Iterator[str]:
    """Yields the name of this call; an error in the block refuses it on all ranks.

    Args:
      kind: the collective that the others wait in, should this rank refuse.
      name: of the operation; None: the next of its kind in the group.
      group: those who take part; None: all ranks.
    """
    name = named(name, kind, group)
    try:
        yield name
    except Exception as error:
        refuse(kind, name, group, error)
        raise


def refuse(kind: str, name: str, group: Group | None, error: Exception) -> None:
    """Tells the other ranks that this one does not make a call, and why.

    Args:
      kind: the collective that they wait in.
      name: of the operation.
      group: those who take part; None: all ranks.
      error: what has kept this rank from it.
    """
    if isinstance(error, (PeerLostError, ShutdownError)):
        return  # nobody is left to tell
    known = isinstance(error, HerringError)
    why = str(error) if known else f"{type(error).__name__}: {error}"
    with suppress(HerringError):
        job().refuse(kind, name, why, scope_of(group).handle)


def name_of_next(kind: str, group: Group | None) -> str:
    """A name for the next operation of its kind in the group; None: of all ranks."""
    scope_of(group)
    if group is None:
        return next_name(kind)
    return next_name(f"{group.name}.{kind}", group.members().number)


def named(name: str | None, kind: str, group: Group | None) -> str:
    """The name that a caller gave, checked, or the next one of a kind in the group."""
    scope_of(group)
    return name_given(name) or name_of_next(kind, group)
