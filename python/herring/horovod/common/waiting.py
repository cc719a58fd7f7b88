"""What waits for all ranks, in every framework alike."""

from __future__ import annotations

import herring
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of

__all__ = ["barrier", "join"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank has called it.

    Raises:
      HorovodInternalError: a rank is gone, or has not come in time.
    """
    group = group_of(process_set)
    with internal_errors():
        herring.barrier(group=group)


def join() -> int:
    """Lets the others go on without this rank, until every rank has called it.

    The others' all-reduces and steps of an optimizer or trainer are done without it: it contributes
    nothing, and averages divide by the ranks that are left (in Horovod by all ranks, with zeros of
    those that have joined). Anything else that a rank calls meanwhile fails.

    Returns:
      The rank that was last.

    Raises:
      HorovodInternalError: a rank is gone, or not all have joined in time.
    """
    group_of(global_process_set)
    with internal_errors():
        return rounds.without_this_rank(herring.join)
