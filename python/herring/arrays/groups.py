"""Groups: some ranks of a job that do collectives together.

Only the members of a group make it, all with the same list of ranks. Groups may overlap, and
several threads may use groups at the same time. Inside a group ranks are numbered from 0, in the
order of their ranks in the job. With ``group=``, roots, splits and results use these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from herring import _core
from herring.arrays.arguments import Timeout, count_of, name_given, seconds_of, shown
from herring.arrays.names import forget_names_among, next_name
from herring.arrays.runtime import job, require_running
from herring.errors import InvalidArgumentError

__all__ = ["Group", "new_group", "ranks_of_node"]


class Group:
    """Some ranks of the job, made by `new_group`.

    A group is a context manager, which destroys the group at the end of the block. If the block
    raises an exception, the group stays, because an operation may be in flight.

    Attributes:
      ranks: The members' ranks in the job, ascending.
      name: The group's name, for messages.
    """

    def __init__(self, ranks: Sequence[int], name: str, members: _core.Group | None) -> None:
        self.ranks = tuple(ranks)
        self.name = name
        self._job = job()
        self._members = members
        self._destroyed = False

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    @property
    def rank(self) -> int | None:
        """This worker's rank inside the group, 0 to size - 1; None if it is not a member."""
        return None if self._members is None else self._members.rank

    def destroy(self) -> None:
        """Leaves the group; no member can call anything in it any more.

        The call is not collective and does not wait. A second call, or one by a rank that is not a
        member, does nothing.

        Raises:
          InvalidArgumentError: An operation in the group is in flight on this rank.
        """
        if self._members is None or self._destroyed:
            return
        require_running(self._job, f"group '{self.name}'")
        self._job.destroy_group(self._members)
        self._destroyed = True
        forget_names_among(self._members.number)

    def members(self) -> _core.Group:
        """Returns the core's object for the group.

        Raises:
          InvalidArgumentError: This rank is not a member, or has destroyed the group.
          ShutdownError: The job to which the group belongs has ended.
        """
        require_running(self._job, f"group '{self.name}'")
        if self._members is None:
            raise InvalidArgumentError(
                f"rank {self._job.rank} is not in group '{self.name}', which has ranks "
                f"{list(self.ranks)}"
            )
        if self._destroyed:
            raise InvalidArgumentError(f"group '{self.name}' was destroyed")
        return self._members

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.destroy()

    def __repr__(self) -> str:
        return f"herring.Group(name={self.name!r}, ranks={list(self.ranks)})"


class Scope(NamedTuple):
    """The ranks that take part in a call: the core's group, this worker's place, their number."""

    handle: _core.Group | None
    rank: int
    size: int


def scope_of(group: Group | None) -> Scope:
    """Returns the scope of a group (None: the job); an error if this rank is not in the group."""
    if group is None:
        running = job()
        return Scope(None, running.rank, running.size)
    if not isinstance(group, Group):
        raise InvalidArgumentError(
            f"group is {shown(group)}; it must be a herring.Group, from herring.new_group(), or "
            "None"
        )
    members = group.members()
    return Scope(members, members.rank, members.size)


def new_group(ranks: Sequence[int], *, name: str | None = None, timeout: Timeout = None) -> Group:
    """Makes a group of these ranks (collective among them).

    Every member calls `new_group` with the same ranks. The n-th call with a list on one member
    meets the n-th on every other. A rank that is not in the list may also make the call; it takes
    no part and gets a group that it cannot use.

    Args:
      ranks: Ranks of the job, at least one, in any order and each once.
      name: The group's name, for messages; equal on all members. None numbers the groups.
      timeout: Seconds (or a text such as "5s") until the call fails because a member does not make
        it; None means ``HERRING_TIMEOUT``.

    Returns:
      The group.

    Raises:
      InvalidArgumentError: `ranks` is not a list of ranks of this job.
      PeerLostError: A member died or left.
      TimeoutError: Not all members made the call in time; the message names the missing members.
    """
    running = job()
    listed = _checked(ranks, running.size)
    seconds = seconds_of(timeout)
    given = name_given(name)
    label = given or next_name("group", tuple(listed))
    if running.rank not in listed:
        return Group(listed, label, None)
    forming = running.form_group(listed, label, seconds, unique=not given)
    forming.wait()
    return Group(listed, label, forming.formed())


def _checked(ranks: Sequence[int], size: int) -> list[int]:
    given: Any = ranks
    try:
        given = list(ranks)
        listed = sorted(count_of(rank, "a rank", 0, size - 1) for rank in given)
    except (InvalidArgumentError, TypeError):
        listed = []
    if not listed or len(set(listed)) < len(listed):
        raise InvalidArgumentError(
            f"ranks is {shown(given)}; it must be a list with at least one rank of 0 to "
            f"{size - 1}, each once"
        )
    return listed


def ranks_of_node(node: int | None = None) -> list[int]:
    """Returns the ranks on one node, ordered by local rank.

    ``new_group(ranks_of_node())`` is the group of this node, whose averages stay in shared memory.
    ``new_group([ranks_of_node(n)[0] for n in range(num_nodes())])`` has one rank per node.

    Args:
      node: The node's number, 0 to num_nodes() - 1; None means this worker's node.

    Returns:
      Ranks of the job.

    Raises:
      InvalidArgumentError: The job has no such node.
    """
    running = job()
    try:
        return running.ranks_of_node(
            running.node_rank if node is None else count_of(node, "node", 0, running.num_nodes - 1)
        )
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"node is {shown(node)}; the job's nodes are 0 to {running.num_nodes - 1}"
        ) from None
