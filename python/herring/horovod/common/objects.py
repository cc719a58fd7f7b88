"""Sends objects from one rank, or from every rank, to all ranks: by pickle, or as JSON.

``HERRING_OBJECTS`` says which (see `herring.broadcast_object`).
"""

from __future__ import annotations

from typing import Any

import herring
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends an object from one rank to all ranks (collective).

    It travels by pickle, so every rank trusts `root_rank`. ``HERRING_OBJECTS=json`` sends only
    what JSON can carry, and ``HERRING_OBJECTS=none`` sends nothing.

    Returns:
      A copy of the root's object; on the root, `obj` itself.
    """
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    name = None if name is None else f"horovod.broadcast_object.{name}"
    with internal_errors():
        return herring.broadcast_object(obj, root, name=name, group=group)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Sends an object from every rank to all ranks (collective).

    It travels by pickle, so every rank trusts all others. ``HERRING_OBJECTS=json`` sends only
    what JSON can carry, and ``HERRING_OBJECTS=none`` sends nothing.

    Returns:
      A list with the objects of all ranks, in rank order.
    """
    group = group_of(process_set)
    name = None if name is None else f"horovod.allgather_object.{name}"
    with internal_errors():
        return herring.allgather_object(obj, name=name, group=group)
