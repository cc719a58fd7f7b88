"""Objects of one rank, or of all, for all."""

from __future__ import annotations

from typing import Any

import herring
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Hands a picklable object of one rank to all.

    Args:
      obj: read on the root only.
      root_rank: a rank of the job.
      name: identifies the operation across ranks.
      process_set: who takes part.

    Returns:
      The object; on the root the one given.
    """
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    name = None if name is None else f"horovod.broadcast_object.{name}"
    with internal_errors():
        return herring.broadcast_object(obj, root, name=name, group=group)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Hands a picklable object of every rank to all.

    Args:
      obj: this rank's.
      name: identifies the operation across ranks.
      process_set: who takes part.

    Returns:
      The objects in rank order.
    """
    group = group_of(process_set)
    name = None if name is None else f"horovod.allgather_object.{name}"
    with internal_errors():
        return herring.allgather_object(obj, name=name, group=group)
