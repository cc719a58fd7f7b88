"""Messages between two ranks: send and receive, with tags.

A message goes straight from worker to worker, but for a small one, which waits at a server until
it is asked for. Those of one sender with one tag arrive in the order in which they were sent.
"""

from __future__ import annotations

from typing import Any

from herring.arrays.arguments import count_of, rank_of, seconds_of
from herring.arrays.collectives import Handle, note_write
from herring.arrays.groups import Group, scope_of
from herring.arrays.runtime import job
from herring.errors import InvalidArgumentError

__all__ = ["Receiving", "receive", "receive_async", "send", "send_async"]

_MOST_TAG = 2**63 - 1


class Receiving(Handle):
    """A receive under way."""

    @property
    def source(self) -> int:
        """The rank that sent it, inside the group if there is one; once it is complete."""
        return self._operation.counts[0]

    @property
    def tag(self) -> int:
        """Its tag; once it is complete."""
        return self._operation.counts[1]


def send(
    array: Any,
    to: int,
    tag: int = 0,
    *,
    timeout: float | None = None,
    group: Group | None = None,
) -> None:
    """Sends `array` to one rank; returns when that rank receives it, and `array` may be changed.

    Args:
      array: any shape and dtype of `allreduce`; contiguous. Not changed.
      to: a rank, inside the group if there is one; not this one.
      tag: 0 to 2**63 - 1; what receives it asks for this tag, or any.
      timeout: seconds until it fails because nobody receives it; None: ``HERRING_TIMEOUT``.
      group: of which both ranks are members; None: all ranks.

    Raises:
      InvalidArgumentError: a value that is impossible.
      MismatchError: what receives it has another dtype or number of elements; it fails too.
      PeerLostError, TimeoutError: as `allreduce`.
    """
    send_async(array, to, tag, timeout=timeout, group=group).wait()


def send_async(
    array: Any,
    to: int,
    tag: int = 0,
    *,
    timeout: float | None = None,
    group: Group | None = None,
) -> Handle:
    """Starts a `send`. Leave the array alone until `Handle.wait` has returned."""
    return Handle(_submit("send", array, to, tag, timeout, group), array)


def receive(
    array: Any,
    source: int | None = None,
    tag: int | None = 0,
    *,
    timeout: float | None = None,
    group: Group | None = None,
) -> int:
    """Receives a message into `array`.

    Args:
      array: dtype and number of elements of what is sent; contiguous, writable.
      source: the rank that sends it, inside the group if there is one; None: any.
      tag: as it is sent with; None: any.
      timeout: seconds until it fails because nothing that fits is sent; None:
        ``HERRING_TIMEOUT``.
      group: of which both ranks are members; None: all ranks.

    Returns:
      The rank that sent it.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `send`.
    """
    receiving = receive_async(array, source, tag, timeout=timeout, group=group)
    receiving.wait()
    return receiving.source


def receive_async(
    array: Any,
    source: int | None = None,
    tag: int | None = 0,
    *,
    timeout: float | None = None,
    group: Group | None = None,
) -> Receiving:
    """Starts a `receive`. Leave the array alone until `Handle.wait` has returned."""
    operation = _submit("receive", array, source, tag, timeout, group)
    note_write(array)
    return Receiving(operation, array)


def _submit(
    kind: str,
    array: Any,
    other: int | None,
    tag: int | None,
    timeout: float | None,
    group: Group | None,
) -> Any:
    scope = scope_of(group)
    what = "to" if kind == "send" else "source"
    peer, options = None, {}
    if kind == "send" or tag is not None:
        options["tag"] = count_of(tag, "tag", 0, _MOST_TAG)
    if kind == "send" or other is not None:
        peer = options[what] = rank_of(other, scope.size, kind, group, what)
        if peer == scope.rank:
            raise InvalidArgumentError(
                f"{kind}: {what} is {peer}, which is this rank itself; a message goes to another "
                "rank. Copy the array instead"
            )
    return job().submit(
        kind,
        array,
        f"{kind} {'any' if peer is None else peer}",
        timeout=seconds_of(timeout),
        waits=False,
        group=scope.handle,
        **options,
    )
