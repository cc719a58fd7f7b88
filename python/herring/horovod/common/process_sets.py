"""Process sets, Horovod's groups of ranks. All ranks register a process set; its members use it."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import herring
from herring.arrays.groups import Group, new_group
from herring.arrays.objects import check_same
from herring.arrays.runtime import forget_job
from herring.errors import InvalidArgumentError
from herring.horovod.common.exceptions import NotInitializedError


class ProcessSet:
    """A set of ranks of the job that take part in collectives together.

    A process set can be used once `init` or `add_process_set` has registered it, until it is
    removed or the job ends.

    Args:
      ranks_or_comm: a list of different ranks of the job, in any order. MPI communicators are not
        supported.

    Attributes:
      process_set_id: the number of the process set, or None if it is not registered. 0 is the set
        of all ranks.
      ranks: the ranks, ascending.
      mpi_comm: always None.

    Raises:
      InvalidArgumentError: `ranks_or_comm` is not a list of different ranks.
    """

    process_set_id: int | None = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Sequence[int]) -> None:
        try:
            listed = sorted(operator.index(rank) for rank in ranks_or_comm)
        except TypeError:
            raise InvalidArgumentError(
                f"ProcessSet({ranks_or_comm!r}): it must be a list of ranks; MPI communicators "
                "are not supported"
            ) from None
        if not listed or len(set(listed)) < len(listed) or listed[0] < 0:
            raise InvalidArgumentError(
                f"ProcessSet({list(ranks_or_comm)}): it must name at least one rank, each "
                "once, none negative"
            )
        self.ranks: list[int] | None = listed
        self._group: Group | None = None

    def included(self) -> bool | None:
        """Returns whether this rank is in the process set; None if it is not registered."""
        ranks = self._registered_ranks()
        return None if ranks is None else herring.rank() in ranks

    def size(self) -> int | None:
        """Returns the number of ranks in the process set; None if it is not registered."""
        ranks = self._registered_ranks()
        return None if ranks is None else len(ranks)

    def rank(self) -> int | None:
        """Returns this rank's index in the process set; None if it is not registered.

        Raises:
          InvalidArgumentError: this rank is not in the process set.
        """
        ranks = self._registered_ranks()
        if ranks is None:
            return None
        if herring.rank() not in ranks:
            raise InvalidArgumentError(f"rank {herring.rank()} is not in {self}")
        return ranks.index(herring.rank())

    def _registered_ranks(self) -> list[int] | None:
        return None if self.process_set_id is None else self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __repr__ = __str__


class _All(ProcessSet):
    """The set of all ranks of the current job."""

    def __init__(self) -> None:
        self._group = None

    @property
    def process_set_id(self) -> int | None:  # type: ignore[override]
        return 0 if herring.is_initialized() else None

    @property
    def ranks(self) -> list[int] | None:  # type: ignore[override]
        return list(range(herring.size())) if herring.is_initialized() else None


global_process_set: ProcessSet = _All()

_registered: dict[int, ProcessSet] = {}  # Keys are the numbers, which start at 1.


class _State:
    set_up = False  # Whether `set_up` was called in this job.
    next = 1  # Number of the next process set.


def is_set_up() -> bool:
    """Returns whether `set_up` was called in this job."""
    return _State.set_up


def set_up(wanted: Sequence[ProcessSet]) -> None:
    """Registers the process sets passed to `init` (collective)."""
    for one in wanted:
        if not isinstance(one, ProcessSet):
            raise InvalidArgumentError(
                f"process_sets contains {one!r}; it must be a list of ProcessSet"
            )
    check_same("the process sets of init()", [one.ranks for one in wanted], name="horovod.init")
    _State.set_up = True
    for one in wanted:
        _register(one)


def _forget() -> None:
    for one in _registered.values():
        one.process_set_id, one._group = None, None
    _registered.clear()
    _State.set_up, _State.next = False, 1


forget_job.append(_forget)


def _register(process_set: ProcessSet) -> None:
    size, ranks = herring.size(), process_set.ranks
    if ranks is None or ranks[-1] >= size:
        raise InvalidArgumentError(
            f"{process_set}: ranks of the job are 0 to {size - 1}; ranks is {ranks}"
        )
    for one in (global_process_set, *_registered.values()):
        if one is process_set or one.ranks == ranks:
            raise InvalidArgumentError(
                f"there is a process set with these ranks already: {one}; use that one"
            )
    number = _State.next
    _State.next += 1
    process_set._group = new_group(ranks, name=f"process set {number}")
    process_set.process_set_id = number
    _registered[number] = process_set


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Registers a process set (collective: every rank of the job must pass the same ranks).

    Args:
      process_set: the process set, or a list of ranks.

    Returns:
      The process set.

    Raises:
      InvalidArgumentError: the ranks are invalid, or a process set with the same ranks exists.
      MismatchError: ranks of the job pass different ranks.
      NotInitializedError: `init` has not been called.
    """
    if not herring.is_initialized():
        raise NotInitializedError("add_process_set() needs hvd.init() before it")
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    name = f"horovod.add_process_set.{_State.next}"
    check_same("the ranks of add_process_set()", process_set.ranks, name=name)
    _register(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set (collective: every rank of the job must call this).

    Args:
      process_set: a registered process set.

    Returns:
      Whether the process set was removed: False for the set of all ranks, and for a process set
      that is not registered.

    Raises:
      InvalidArgumentError: an operation in the process set is in flight on this rank; the process
        set stays registered.
      MismatchError: ranks of the job pass different process sets.
    """
    number = process_set.process_set_id
    if number is None or number == 0 or _registered.get(number) is not process_set:
        return False
    check_same("what remove_process_set() removes", number, name="horovod.remove_process_set")
    if process_set._group is not None:
        process_set._group.destroy()
    process_set.process_set_id, process_set._group = None, None
    del _registered[number]
    return True


def group_of(process_set: ProcessSet) -> Group | None:
    """Returns Herring's group for a process set, or None for the set of all ranks."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set is {process_set!r}; it must be a hvd.ProcessSet")
    if process_set is global_process_set:
        if not herring.is_initialized():
            raise NotInitializedError("Horovod has not been initialized: hvd.init()")
        return None
    group = process_set._group
    if process_set.process_set_id is None or group is None:
        raise InvalidArgumentError(
            f"{process_set} is not registered: hvd.add_process_set(process_set) on all ranks, or "
            "init(process_sets=[...])"
        )
    group.members()
    return group


def process_set_of(number: int) -> ProcessSet | None:
    """Returns the registered process set with this number, or None if there is none."""
    return global_process_set if number == 0 else _registered.get(number)


def root_in(process_set: ProcessSet, root_rank: int) -> int:
    """Returns the index of a rank of the job in a process set."""
    ranks = process_set.ranks
    if ranks is None or root_rank not in ranks:
        raise InvalidArgumentError(
            f"root_rank is {root_rank}; it must be a rank of the job in the process set, one of "
            f"{ranks}"
        )
    return ranks.index(root_rank)
