"""Ranks with less to do than others."""

from __future__ import annotations

from herring.arrays.arguments import seconds_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.names import number_anew_after
from herring.arrays.runtime import job

__all__ = ["join"]


def join(*, timeout: float | None = None, group: Group | None = None) -> int:
    """Lets the others go on without this rank, until every rank has called it.

    For uneven data: a rank that has run out of it calls `join` where the others still call
    all-reduces. These are done without it, whatever their names: an average divides by the ranks
    that called. A call that it has made before counts. Returns on all ranks when the last has
    joined; from then on every call takes all of them again, and calls without a name are numbered
    anew.

    Only all-reduces by servers (``algorithm="herring"``) and grouped ones can do without a rank:
    any other collective that a rank calls meanwhile fails on all that call it, and names who has
    joined. Planned rounds have ``begin(active=False)`` instead, torch's wrappers
    ``ddp.join()``. A rank that has joined needs as much memory as the all-reduces of the
    others that are under way.

    Args:
      timeout: seconds after the first rank has joined until it fails because others have not; the
        shortest of all that are given counts. Nothing can be called in the group any more then;
        without groups the job ends. None: ``HERRING_TIMEOUT``.
      group: those who join; None: all ranks.

    Returns:
      The rank that was last: that has called most all-reduces since all had joined, of several the
      one that came last; inside the group, if there is one.

    Raises:
      InvalidArgumentError: another thread of this rank has joined, or calls something meanwhile:
        that call raises it.
      PeerLostError: a rank has died or left.
      TimeoutError: not all ranks have joined in time; the message names them.
    """
    members = scope_of(group).handle
    operation = job().submit(
        "join",
        None,
        "herring.join",
        timeout=seconds_of(timeout),
        waits=True,
        group=members,
    )
    number_anew_after(operation, None if members is None else members.number)
    operation.wait()
    return int(operation.counts[0])
