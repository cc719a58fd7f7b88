"""Messages between two ranks: send and receive, with tags.

A message goes straight from worker to worker. Without `HERRING_FAILOVER`, a small message instead
waits at a server until the receiver asks for it. Messages with one sender, receiver and tag arrive
in the order of sending.

Args:
  group: A group of which both ranks are members; None means all ranks.

Raises:
  InvalidArgumentError: An argument cannot be used.
  PeerLostError: The other rank, or a server that is needed, died or left.
  ShutdownError: This process is not in a job.
"""

from __future__ import annotations

from typing import Any

from herring.arrays.arguments import Timeout, count_of, rank_of, seconds_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.operations import Handle, note_write
from herring.arrays.runtime import job
from herring.errors import InvalidArgumentError

__all__ = ["Receiving", "receive", "receive_async", "send", "send_async"]

_MOST_TAG = 2**63 - 1


class Receiving(Handle):
    """A receive under way."""

    @property
    def source(self) -> int:
        """The rank that sent the message (with a group, inside it); known once it is complete."""
        return self._operation.counts[0]

    @property
    def tag(self) -> int:
        """The message's tag; known once the receive is complete."""
        return self._operation.counts[1]


def send(
    array: Any, to: int, tag: int = 0, *, timeout: Timeout = None, group: Group | None = None
) -> None:
    """Sends `array` to one rank; returns when that rank receives it and `array` may be changed.

    Args:
      array: A contiguous array of any shape and of a dtype that `allreduce` takes. Not changed.
      to: The rank that receives the message, not this rank; with `group`, a rank inside it.
      tag: 0 to 2**63 - 1. A receive asks for this tag, or for any tag.
      timeout: Seconds until the call fails because no rank receives the message; None means
        ``HERRING_TIMEOUT``.

    Raises:
      MismatchError: The receive has another dtype or number of elements; the receive fails too.
      TimeoutError: The message was not received in time.
    """
    send_async(array, to, tag, timeout=timeout, group=group).wait()


def send_async(
    array: Any, to: int, tag: int = 0, *, timeout: Timeout = None, group: Group | None = None
) -> Handle:
    """Starts sending `array` to one rank and returns at once.

    Args:
      array: A contiguous array of any shape and of a dtype that `allreduce` takes. Leave it alone
        until `Handle.wait` has returned.

    Returns:
      A handle, whose `wait` returns when the message has been received.
    """
    return Handle(_submit("send", array, to, tag, timeout, group), array)


def receive(
    array: Any,
    source: int | None = None,
    tag: int | None = 0,
    *,
    timeout: Timeout = None,
    group: Group | None = None,
) -> int:
    """Receives a message into `array`.

    Args:
      array: A contiguous, writable array with the dtype and number of elements of the message.
      source: The rank that sends the message (with `group`, inside it); None means any rank.
      tag: The tag with which the message is sent; None means any tag.
      timeout: Seconds until the call fails because no matching message is sent; None means
        ``HERRING_TIMEOUT``.

    Returns:
      The rank that sent the message.

    Raises:
      MismatchError: The message has another dtype or number of elements; the send fails too.
      TimeoutError: No matching message arrived in time.
    """
    receiving = receive_async(array, source, tag, timeout=timeout, group=group)
    receiving.wait()
    return receiving.source


def receive_async(
    array: Any,
    source: int | None = None,
    tag: int | None = 0,
    *,
    timeout: Timeout = None,
    group: Group | None = None,
) -> Receiving:
    """Starts receiving a message into `array` and returns at once.

    Args:
      array: A contiguous, writable array with the dtype and number of elements of the message.
        Leave it alone until `Handle.wait` has returned.

    Returns:
      A handle that tells the source and the tag once it is complete.
    """
    operation = _submit("receive", array, source, tag, timeout, group)
    note_write(array)
    return Receiving(operation, array)


def _submit(
    kind: str, array: Any, other: int | None, tag: int | None, timeout: Timeout, group: Group | None
) -> Any:
    scope = scope_of(group)
    what = "to" if kind == "send" else "source"
    peer = None
    options: dict[str, Any] = {}
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
