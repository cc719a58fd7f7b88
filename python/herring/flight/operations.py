"""Finds the entries of all processes that belong to one operation."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from herring.base.units import ranks_text
from herring.flight.record import Entry, Record

#: The collectives, as they stand in the names of calls that a program did not name.
COLLECTIVES: tuple[str, ...] = (
    *("allgather", "allreduce", "alltoall", "barrier", "broadcast", "gather", "join", "reduce"),
    *("reduce_scatter", "scatter"),
)
#: What concerns two ranks only.
MESSAGES = ("send", "receive")
#: What concerns the ranks that become a group.
FORMING = "form_group"
_NUMBERED = re.compile(r"(?P<base>.+?)(?:#(?P<era>\d+))?\.(?P<number>\d+)")
_CONCERNED = re.compile(r".*' \(ranks? (\d[\d, -]*)\)", re.DOTALL)
_COLLECTIVE = re.compile(rf"(?:.*\.)?({'|'.join(COLLECTIVES)})", re.DOTALL)


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    """What identifies an operation on all ranks."""

    group: int  # the number of the group; 0 means all ranks
    name: str  # the name of the plan or the call
    round: int  # the number of the round, or of the call among those of its name
    planned: bool  # whether it is a round of a plan
    by: int = -1  # the rank that sends or receives, if it is a message; else -1

    @property
    def title(self) -> str:
        """What reports call the operation."""
        if self.by >= 0:
            return f"{self.name} of rank {self.by}"
        # The name of a call says what it is, such as "allreduce 'loss'".
        says = not self.planned and self.name.endswith(("'", ")"))
        name = self.name if says else f"'{self.name}'"
        if self.planned:
            return f"{name} round {self.round}"
        return f"{name} (call {self.round})" if self.round > 1 else name


@dataclasses.dataclass(frozen=True)
class Series:
    """Operations that each rank calls in the order of their numbers."""

    # The group, the name without its number, and whether they are rounds of a plan.
    name: tuple[int, str, bool]
    number: tuple[int, int, int]  # the place of the operation in the series

    @staticmethod
    def of(key: Key) -> Series:
        """Returns the series of an operation; calls without a name have numbers in their names."""
        if match := None if key.planned else _NUMBERED.fullmatch(key.name):
            number = int(match["era"] or 0), int(match["number"]), key.round
            return Series((key.group, match["base"], False), number)
        return Series((key.group, key.name, key.planned), (0, 0, key.round))


@dataclasses.dataclass
class Operation:
    """One operation, with the entries of all processes."""

    key: Key  # what identifies it
    # The ranks that take part, in ascending order; None if the record does not tell.
    members: tuple[int, ...] | None = None
    # The entry of each rank that has called it.
    calls: dict[int, Entry] = dataclasses.field(default_factory=dict)
    # The fusion buffers of each rank, if it is a round of a plan.
    buffers: dict[int, list[Entry]] = dataclasses.field(default_factory=dict)
    # The sums of each server.
    sums: dict[int, list[Entry]] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """What reports call the operation."""
        return self.key.title

    @property
    def other(self) -> int | None:
        """The other rank of a message; None if it may be any, or if this is none."""
        others = [rank for rank in self.members or () if rank != self.key.by]
        return others[0] if self.key.by >= 0 and others else None

    @property
    def begun(self) -> float:
        """When the first rank called it."""
        return min((one.called or one.ready or 0.0 for one in self.calls.values()), default=0.0)

    @property
    def waiting(self) -> list[int]:
        """The ranks that have called it and for which it has not ended well."""
        return sorted(rank for rank, entry in self.calls.items() if not entry.finished)

    @property
    def collective(self) -> str:
        """The collective if the record or the name tells; else ""."""
        if self.key.planned:
            return "allreduce"
        for entry in self.calls.values():
            if entry.collective:
                return entry.collective
        series = Series.of(self.key).name[1]
        match = _COLLECTIVE.fullmatch(series) if series != self.key.name else None
        return match[1] if match else ""

    def completed(self) -> bool:
        """Returns whether it has ended well on all its ranks."""
        if self.key.by >= 0:
            return self.calls[self.key.by].finished
        return self.members is not None and all(
            rank in self.calls and self.calls[rank].finished for rank in self.members
        )


def concerned(name: str, size: int) -> tuple[int, ...] | None:
    """Returns the ranks that a call names: "form_group 'tp' (ranks 0-1)"; None if it names none.

    Args:
        name: The name of the call. A long one has lost its middle, and may name none.
    """
    found = _CONCERNED.fullmatch(name)
    ranks: set[int] = set()
    for part in found[1].split(", ") if found else ():
        ends = [int(one) if one.isdigit() else size for one in part.split("-")]
        if max(ends) >= size:
            return None
        ranks.update(range(ends[0], ends[-1] + 1))
    return tuple(sorted(ranks)) or None


def members_of(record: Record, group: int, seen: Iterable[int]) -> tuple[int, ...] | None:
    """Returns the ranks of a group, in ascending order; None if the record does not tell."""
    if group == 0:
        return tuple(range(record.size))
    if group in record.groups:
        return tuple(sorted(record.groups[group]))
    # A rank of the group that has called nothing is not seen, unless every rank's record is whole.
    found = tuple(sorted(seen))
    return found if len(found) == record.size else None


def match(record: Record) -> list[Operation]:
    """Returns the operations of a record in the order in which a rank first called them."""
    found: dict[Key, Operation] = {}
    buffers: dict[Key, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    seen: dict[int, set[int]] = defaultdict(set)
    for rank, process in record.ranks.items():
        for entry in process.entries:
            key = Key(entry.group, entry.name, entry.place, entry.kind in ("round", "buffer"))
            if entry.collective in MESSAGES:
                key = dataclasses.replace(key, by=rank)
                last = found.setdefault(key, Operation(key)).calls
                if rank not in last or last[rank].finished:
                    last[rank] = entry
                continue
            seen[entry.group].add(rank)
            if entry.kind in ("round", "call"):
                # A plan that was made again counts from 0 again, so only the latest entry counts.
                found.setdefault(key, Operation(key)).calls[rank] = entry
            elif entry.kind == "buffer":
                buffers[key][rank].append(entry)
    for key, operation in found.items():
        if key.by >= 0:
            operation.members = tuple({key.by, *(concerned(key.name, record.size) or ())})
            continue
        if operation.collective == FORMING:
            operation.members = concerned(key.name, record.size)
            continue
        operation.members = members_of(record, key.group, seen[key.group])
        for rank, entries in buffers[key].items():
            if rank in operation.calls:
                stream = operation.calls[rank].stream
                operation.buffers[rank] = [one for one in entries if one.stream == stream]
    _add_sums(record, found)
    return sorted(found.values(), key=lambda one: (one.begun, one.key))


def _add_sums(record: Record, found: Mapping[Key, Operation]) -> None:
    by_stream = {}
    for key, operation in found.items():
        for entry in operation.calls.values():
            by_stream[key.group, entry.stream, entry.round, key.planned] = key
    for server, process in record.servers.items():
        for entry in process.entries:
            for planned in (True, False):
                key = Key(entry.group, entry.name, entry.round, planned)
                # A server may know only the number of a plan, and knows no number of a call.
                if not entry.name or (not planned and entry.stream):
                    key = by_stream.get((entry.group, entry.stream, entry.round, planned), key)
                if key in found:
                    found[key].sums.setdefault(server, []).append(entry)
                    break


class Histories:
    """What the ranks of a record have called and kept; each rank's entries are read only once."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._numbers: dict[int, dict[tuple[int, str, bool], list[tuple[int, int, int]]]] = {}
        self._ended: dict[int, dict[tuple[int, str, int], float]] = {}
        self._common: dict[tuple[int, int], float] = {}

    def numbers(self, rank: int, series: Series) -> list[tuple[int, int, int]]:
        """Returns the least and the largest number of a series that a rank has kept, or nothing."""
        if rank not in self._numbers:
            found = self._numbers[rank] = {}
            for entry in self._calls(rank):
                key = Key(entry.group, entry.name, entry.place, entry.kind == "round")
                place = Series.of(key)
                ends = found.setdefault(place.name, [place.number, place.number])
                ends[:] = min(ends[0], place.number), max(ends[1], place.number)
        return self._numbers[rank].get(series.name, [])

    def common(self, rank: int, other: int) -> float:
        """Returns when the first operation ended on `other` that `rank` has kept, too."""
        if (rank, other) not in self._common:
            kept, ended = self._ended_on(rank), self._ended_on(other)
            both = (done for key, done in ended.items() if key in kept)
            self._common[rank, other] = min(both, default=math.inf)
        return self._common[rank, other]

    def _ended_on(self, rank: int) -> dict[tuple[int, str, int], float]:
        if rank not in self._ended:
            found = self._ended[rank] = {}
            for entry in self._calls(rank):
                if entry.finished:
                    key = (entry.group, entry.name, entry.place)
                    done = entry.done or 0.0
                    found[key] = min(found.get(key, done), done)
        return self._ended[rank]

    def _calls(self, rank: int) -> Iterator[Entry]:
        entries = self.record.ranks[rank].entries
        return (
            entry
            for entry in entries
            if entry.kind in ("round", "call") and entry.collective not in MESSAGES
        )


def called_by(histories: Histories, operation: Operation, rank: int) -> bool | None:
    """Tells whether a rank has called an operation.

    Processes keep only their latest entries, so an operation that a record lacks may have been
    called long ago.

    Returns:
        True or False if the record proves it, else None.
    """
    record = histories.record
    if rank in operation.calls:
        return True
    name, number = operation.key.name, operation.key.round
    what = (operation.title, name, f"'{name}' (round {number})", f"{name} (round {number})")
    if any(rank in one.ranks and one.what in what for one in record.missing):
        return False
    process = record.ranks.get(rank)
    if process is None:
        return None
    if not process.entries or process.entries[0].id <= 1:
        return False  # nothing was dropped
    series = Series.of(operation.key)
    if numbers := histories.numbers(rank, series):
        if max(numbers) < series.number:
            return False
        return True if min(numbers) > series.number else None
    # The rank's entries may go back to operations that all others ended before this one.
    covered = all(histories.common(rank, other) <= operation.begun for other in operation.calls)
    return False if covered else None


def describe(ranks: Iterable[int], record: Record) -> str:
    """Returns the ranks, with the host's name if it is a single rank: "rank 3 (host1)"."""
    listed = sorted(set(ranks))
    text = ranks_text(listed)
    process = record.ranks.get(listed[0]) if len(listed) == 1 else None
    return f"{text} ({process.host})" if process is not None and process.host else text
