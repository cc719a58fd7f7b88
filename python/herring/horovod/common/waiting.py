"""Calls that wait for all ranks, the same for every framework."""

from __future__ import annotations

import herring
from herring.horovod.common import rounds
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until every rank of the process set has called `barrier` (collective)."""
    group = group_of(process_set)
    with internal_errors():
        herring.barrier(group=group)


def join() -> int:
    """Lets the other ranks continue without this rank, until every rank has called `join`.

    All-reduces and optimizer or trainer steps of the other ranks complete without this rank.
    Averages divide by the number of all ranks, with zeros for those that have joined, unless
    ``init(joined_as_zeros=False)`` was called. Any other collective fails meanwhile.

    Returns:
      The rank that called `join` last.
    """
    group_of(global_process_set)
    with internal_errors():
        return rounds.without_this_rank(herring.join)
