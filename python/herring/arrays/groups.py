"""Groups: some ranks of a job that do collectives together.

A group is made by its members alone, with the same list; groups may overlap, and be used at the
same time from several threads. Inside a group ranks are numbered from 0, in the order of their
ranks in the job: roots, splits and results of collectives with ``group=`` count like that.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple

from herring import _core
from herring.arrays.arguments import count_of, name_given, seconds_of, shown
from herring.arrays.names import forget_names_among, next_name
from herring.arrays.runtime import job, require_running
from herring.errors import InvalidArgumentError

__all__ = ["Group", "new_group", "ranks_of_node"]


class Group:
    """Some ranks of the job; `new_group` makes it. A context manager, which destroys it.

    After an exception in its block the group stays: something may be in flight.

    Attributes:
      ranks: its members, ascending ranks of the job.
      name: for messages.
    """

    def __init__(self, ranks: Sequence[int], name: str, members: _core.Group | None) -> None:
        self.ranks = tuple(ranks)
        self.name = name
        self._job = job()
        self._members = members
        self._destroyed = False

    @property
    def size(self) -> int:
        """Number of its members."""
        return len(self.ranks)

    @property
    def rank(self) -> int | None:
        """This worker's rank inside the group, 0 to size - 1; None: it is no member."""
        return None if self._members is None else self._members.rank

    def destroy(self) -> None:
        """Leaves the group: this rank calls nothing in it any more, and others cannot either.

        Not collective: it does not wait. A second call, or one by a rank that is no member, does
        nothing.

        Raises:
          InvalidArgumentError: something in the group is in flight on this rank.
        """
        if self._members is None or self._destroyed:
            return
        require_running(self._job, f"group '{self.name}'")
        self._job.destroy_group(self._members)
        self._destroyed = True
        forget_names_among(self._members.number)

    def members(self) -> _core.Group:
        """What the core knows it by.

        Raises:
          InvalidArgumentError: this rank is no member, or has destroyed it.
          ShutdownError: the job that it belongs to has ended.
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
    """Who takes part in a call: what the core knows them by, this worker's place, how many."""

    handle: _core.Group | None
    rank: int
    size: int


def scope_of(group: Group | None) -> Scope:
    """The members of `group`; None: of the job.

    Raises:
      InvalidArgumentError: not a `Group`; this rank is no member, or has destroyed it.
      ShutdownError: the job has ended.
    """
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


def new_group(
    ranks: Sequence[int], *, name: str | None = None, timeout: float | None = None
) -> Group:
    """Makes a group of these ranks (collective among them).

    Every member calls it with the same ranks; the n-th call of one member with a list meets the
    n-th of every other. A rank that is not listed may call it too: it takes no part, and gets a
    group that it cannot use.

    Args:
      ranks: of the job, in any order, each once; at least one.
      name: for messages; equal on all members. None: numbered.
      timeout: seconds (or a text such as "5s") until it fails because members do not call it;
        None: ``HERRING_TIMEOUT``.

    Returns:
      The group.

    Raises:
      InvalidArgumentError: no list of ranks of this job.
      PeerLostError: a member has died or left.
      TimeoutError: not all members came in time; the message names them.
    """
    running = job()
    listed = _checked(ranks, running.size)
    seconds = seconds_of(timeout)
    label = name_given(name) or next_name("group", tuple(listed))
    if running.rank not in listed:
        return Group(listed, label, None)
    forming = running.form_group(listed, label, seconds)
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
    """The ranks on one node, by local rank.

    ``new_group(ranks_of_node())`` is the group of this node: what it averages stays in shared
    memory. ``new_group([ranks_of_node(n)[0] for n in range(num_nodes())])`` has one rank per node.

    Args:
      node: 0 to num_nodes() - 1; None: this worker's.

    Raises:
      InvalidArgumentError: there is no such node.
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
