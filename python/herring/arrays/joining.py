"""The `join` call, for ranks that have less data than others."""

from __future__ import annotations

from functools import partial

from herring.arrays.arguments import Timeout, seconds_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.names import submit_join
from herring.arrays.runtime import job

__all__ = ["join"]


def join(*, timeout: Timeout = None, group: Group | None = None) -> int:
    """Lets the other ranks go on without this rank until every rank has called `join`.

    `join` is for uneven data: a rank that has no more data calls it while the others still call
    all-reduces. Those all-reduces are done without this rank, whatever their names; an average
    divides by the number of ranks that made the call. Calls that this rank made before `join`
    still count. When the last rank has joined, `join` returns on all ranks. From then on every
    call takes all ranks again, and calls without a name are numbered from 0 again.

    Only all-reduces by servers (``algorithm="herring"``) and grouped all-reduces can be done
    without a rank. Any other collective called meanwhile fails on all ranks that call it, and the
    error names the ranks that have joined. For planned rounds use ``begin(active=False)`` instead,
    and for torch's wrappers ``ddp.join()``. A rank that has joined needs as much memory as the
    other ranks' all-reduces under way.

    Args:
      timeout: Seconds, from the first rank's `join` on, after which `join` fails because other
        ranks have not joined. The shortest timeout of all ranks counts. After a failure nothing
        can be called in the group any more; without a group the job ends. None means
        ``HERRING_TIMEOUT``.
      group: The group whose members join; None means all ranks.

    Returns:
      The rank that was last: the one that has called most all-reduces since all ranks last joined,
      or, of several such ranks, the one that joined last. With `group`, a rank inside it.

    Raises:
      InvalidArgumentError: Another thread of this rank has joined. A collective that another thread
        calls meanwhile raises it as well.
      PeerLostError: A rank died or left.
      TimeoutError: Not all ranks joined in time; the message names the missing ranks.
    """
    members = scope_of(group).handle
    submit = partial(
        job().submit,
        "join",
        None,
        "herring.join",
        timeout=seconds_of(timeout),
        waits=True,
        group=members,
    )
    operation = submit_join(submit, None if members is None else members.number)
    operation.wait()
    return int(operation.counts[0])
