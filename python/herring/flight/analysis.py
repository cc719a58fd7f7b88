"""Says from a flight record who waited for whom, and where ranks began to differ.

Nothing here accuses a rank without proof: a rank counts as missing only if its own entries, or the
servers, show that it has not called the operation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from herring.base.units import counted, listed, ranks_text, show_duration
from herring.flight.delivery import path_finding
from herring.flight.findings import RANKING, Finding, doing, end_of, is_down, longest_wait, note
from herring.flight.operations import (
    FORMING,
    Histories,
    Operation,
    Series,
    called_by,
    describe,
    match,
)
from herring.flight.record import Record

# Failures that begin on the rank that has them. Other ranks only hear of them.
_OWN_FAILURES = ("invalid argument", "device", "internal", "protocol", "configuration")
# Collectives to which each rank may give a different number of bytes.
_UNEVEN = ("", "allgather", "alltoall", "broadcast", "gather", "scatter", "join", FORMING)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What a record shows."""

    findings: tuple[Finding, ...]  # what was found, the most important first; there is at least one
    # All operations, in the order in which a rank first called them.
    operations: tuple[Operation, ...]
    last_common: Operation | None  # the last operation that has ended well on all its ranks
    first_different: Operation | None  # the first operation that has not, if its ranks differ in it
    # The ranks that have not called an operation, by its place in `operations`.
    absent: dict[int, tuple[int, ...]]
    # The ranks of which nothing tells whether they have called it, likewise.
    unsure: dict[int, tuple[int, ...]]

    @property
    def verdict(self) -> str:
        """The most important finding."""
        return self.findings[0].text


def analyse(record: Record) -> Analysis:
    """Finds out who waited for whom."""
    return _Analyser(record).analyse()


class _Analyser:
    def __init__(self, record: Record) -> None:
        self._record = record
        self._operations = match(record)
        self._histories = Histories(record)
        self._absent: dict[int, tuple[int, ...]] = {}
        self._unsure: dict[int, tuple[int, ...]] = {}
        self._findings: list[Finding] = []

    def analyse(self) -> Analysis:
        operations = self._operations
        for place, operation in enumerate(operations):
            if operation.waiting or not operation.completed():
                self._compare(place, operation)
        self._find()
        ended = [one for one in operations if one.completed()]
        last = max(ended, key=end_of, default=None)
        named = [one.operation for one in self._findings if one.operation is not None]
        different = [
            one
            for place, one in enumerate(operations)
            if one.key in named or self._absent.get(place)
        ]
        ranking = sorted(self._findings, key=lambda one: RANKING.index(one.kind))
        return Analysis(
            findings=tuple(ranking),
            operations=tuple(operations),
            last_common=last,
            first_different=different[0] if different else None,
            absent=self._absent,
            unsure=self._unsure,
        )

    def _compare(self, place: int, operation: Operation) -> None:
        """Finds the ranks that have not called an operation."""
        if operation.key.by >= 0:
            self._absent[place] = self._not_met(operation)
            self._unsure[place] = ()
            return
        told = {
            rank: called_by(self._histories, operation, rank)
            for rank in operation.members or range(self._record.size)
        }
        if operation.members is None:
            # Who is in the group is not known, so only what servers say counts.
            heard = {rank for one in self._record.missing for rank in one.ranks}
            told = {rank: one for rank, one in told.items() if one is False and rank in heard}
        self._absent[place] = tuple(rank for rank, called in told.items() if called is False)
        self._unsure[place] = tuple(rank for rank, called in told.items() if called is None)

    def _not_met(self, operation: Operation) -> tuple[int, ...]:
        """Returns the other rank of a message if it waits in none that could be its counterpart."""
        by, other = operation.key.by, operation.other
        if other is None or by not in operation.waiting:
            return ()
        meets = any(
            one.key.by == other and one.waiting and one.other in (None, by)
            for one in self._operations
            if one.collective != operation.collective
        )
        return () if meets else (other,)

    # -- causes ---------------------------------------------------------------------------------

    def _find(self) -> None:
        waiting = [place for place, one in enumerate(self._operations) if one.waiting]
        for place in waiting:
            if self._disagreement(self._operations[place]):
                continue
            if self._absent[place]:
                self._follow(place)
            elif self._unsure[place]:
                self._cannot_tell(place)
            elif self._operations[place].key.by >= 0:
                self._no_counterpart(self._operations[place])
            elif self._operations[place].members is None:
                self._unknown_group(self._operations[place])
            else:
                found = path_finding(self._record, self._operations[place])
                self._add(found)
        known = {rank for one in self._findings for rank in one.ranks}
        for rank in range(self._record.size):
            if rank not in known:
                self._look_at_process("rank", rank)
        for server in sorted({*self._record.servers, *self._named("server")}):
            if not any(server in one.servers for one in self._findings):
                self._look_at_process("server", server)
        if not self._findings:
            self._add(self._nothing_wrong())

    def _named(self, kind: str) -> list[int]:
        return [index for named, index in self._record.silent if named == kind]

    def _add(self, finding: Finding) -> None:
        if all(finding.text != one.text for one in self._findings):
            self._findings.append(finding)

    def _disagreement(self, operation: Operation) -> bool:
        """Looks for ranks that failed on their own, or gave something else to one operation."""
        failed = {
            rank: entry.outcome
            for rank, entry in operation.calls.items()
            if entry.outcome in _OWN_FAILURES
        }
        if failed and len(failed) < len(operation.calls):
            texts = [
                f"{describe([rank], self._record)} failed in {operation.title} ({outcome})"
                + (f": {why}" if (why := self._record.ranks[rank].failure) else "")
                for rank, outcome in sorted(failed.items())
            ]
            self._add(Finding("failed", "; ".join(texts), tuple(failed), operation=operation.key))
            return True
        sizes = {rank: entry.bytes for rank, entry in operation.calls.items()}
        told = any(entry.outcome == "mismatch" for entry in operation.calls.values())
        uneven = operation.collective in _UNEVEN
        if not told and (uneven or len(set(sizes.values())) < 2):
            return False
        if len(set(sizes.values())) > 1:
            parts = [
                f"{ranks_text(rank for rank in sizes if sizes[rank] == size)} gave "
                f"{counted(size, 'byte')}"
                for size in sorted(set(sizes.values()), key=lambda one: (_first(sizes, one), one))
            ]
            text = f"ranks disagree about {operation.title}: {listed(parts, None)}"
        else:
            why = next((p.failure for p in self._record.ranks.values() if p.failure), "")
            text = f"ranks disagree about {operation.title}, to which all gave as many bytes" + (
                f": {why}" if why else "; their dtypes, operators or roots differ"
            )
        odd = _minority(sizes)
        if not odd and len(set(sizes.values())) > 1:
            text += "; the record cannot tell which is right"
        self._add(Finding("mismatch", text, odd, operation=operation.key))
        return True

    def _follow(self, place: int) -> None:
        """Follows who waits for whom from an operation to the cause."""
        visited = [place]
        while True:
            operation = self._operations[visited[-1]]
            blocked = {
                rank: stuck
                for rank in self._absent[visited[-1]]
                if (stuck := self._stuck_in(rank, visited[-1])) is not None
            }
            free = [rank for rank in self._absent[visited[-1]] if rank not in blocked]
            if free:
                self._missing(operation, free)
                return
            following = min(blocked.values())
            if following in visited:
                self._circle(visited[visited.index(following) :])
                return
            if self._disagreement(self._operations[following]):
                return
            if not self._absent[following]:
                if self._operations[following].key.by >= 0:
                    self._no_counterpart(self._operations[following])
                elif self._unsure[following]:
                    self._cannot_tell(following)
                else:
                    self._add(path_finding(self._record, self._operations[following]))
                return
            visited.append(following)

    def _stuck_in(self, rank: int, other: int) -> int | None:
        """Returns the operation in which a rank waits; None if it does not wait."""
        process = self._record.ranks.get(rank)
        if process is None or is_down(self._record, "rank", rank):
            return None
        if process.state == "computing":
            return None
        stuck = [
            place
            for place, one in enumerate(self._operations)
            if place != other and rank in one.waiting
        ]
        # The program waits in what its state names; without a name, in what it called last.
        named = [
            place for place in stuck if f"'{self._operations[place].key.name}'" in process.where
        ]
        found = named or stuck
        return found[-1] if found else None

    def _missing(self, operation: Operation, free: Sequence[int]) -> None:
        waiting = operation.waiting
        seconds = longest_wait(self._record, operation)
        down = [rank for rank in free if is_down(self._record, "rank", rank)]
        texts = [text for rank in free if (text := doing(self._record, "rank", rank))]
        reasons = ""
        if len(free) == 1 and texts:
            reasons = f"; {texts[0]}"
        elif texts:
            each = [
                f"{ranks_text([rank])}: {text}"
                for rank in free
                if (text := doing(self._record, "rank", rank))
            ]
            reasons = f" ({'; '.join(each)})"
        did = f"called {operation.title}"
        if operation.key.by >= 0:
            verb = "sent" if operation.collective == "receive" else "received"
            did = f"{verb} the message of {operation.title}"
        text = (
            f"{describe(free, self._record)} never {did}, for which "
            f"{ranks_text(waiting)} waited {show_duration(seconds)}{reasons}"
        )
        kind = "stopped" if len(down) == len(free) else "missing"
        self._add(Finding(kind, text, tuple(free), operation=operation.key))

    def _circle(self, places: Sequence[int]) -> None:
        """Describes ranks that wait for each other in different operations."""
        start = places.index(min(places))
        places = [*places[start:], *places[:start]]  # the same circle has the same text
        operations = [self._operations[place] for place in places]
        if len(operations) == 1:
            return self._missing(operations[0], self._absent[places[0]])
        parts = [
            f"{ranks_text(one.waiting)} wait{'' if len(one.waiting) > 1 else 's'} in {one.title}"
            for one in operations
        ]
        collectives = [one.collective for one in operations]
        everyone = [rank for one in operations for rank in one.waiting]
        odd = _minority({rank: i for i, one in enumerate(operations) for rank in one.waiting})
        if all(collectives) and len(set(collectives)) > 1:
            kind = "different"
            what = f"ranks called different collectives at the same place: {listed(parts, None)}"
        elif self._both_used(operations):
            kind = "order"
            what = f"ranks called the same operations in different orders: {listed(parts, None)}"
        else:
            kind = "different"
            what = f"ranks called different operations at the same place: {listed(parts, None)}"
        where = [
            f"{ranks_text([rank])} is in {self._record.ranks[rank].stack}"
            for rank in (odd or everyone[:2])
            if rank in self._record.ranks and self._record.ranks[rank].stack
        ]
        tail = f" ({'; '.join(where)})" if where else ""
        if not odd:
            tail += "; the record cannot tell which is right"
        self._add(Finding(kind, what + tail, odd, operation=operations[0].key))
        return None

    def _both_used(self, operations: Iterable[Operation]) -> bool:
        """Returns whether ranks that wait elsewhere have called the series of each before."""
        operations = list(operations)
        for one in operations:
            series = Series.of(one.key).name
            others = {rank for other in operations for rank in other.waiting} - {*one.calls}
            for rank in others:
                if not any(
                    rank in other.calls and Series.of(other.key).name == series
                    for other in self._operations
                ):
                    return False
        return True

    def _cannot_tell(self, place: int) -> None:
        operation, unsure = self._operations[place], self._unsure[place]
        waited = show_duration(longest_wait(self._record, operation))
        who = f"{ranks_text(operation.waiting)} waited {waited} in {operation.title}"
        down = [rank for rank in unsure if is_down(self._record, "rank", rank)]
        if down:
            text = (
                f"{describe(down, self._record)}: {note(self._record, 'rank', down[0])}; {who}. "
                f"Nothing tells whether {ranks_text(down)} had called it"
            )
            self._add(Finding("stopped", text, tuple(down), operation=operation.key))
            return
        reason = "their" if len(unsure) > 1 else "its"
        lacks = [rank for rank in unsure if rank not in self._record.ranks]
        because = "no record came" if lacks else f"{reason} record begins later"
        text = f"{who}; cannot tell whether {describe(unsure, self._record)} called it: {because}"
        self._add(Finding("unknown", text, operation=operation.key))

    def _no_counterpart(self, operation: Operation) -> None:
        """Describes a message whose other rank is any one, or waits in a message, too."""
        waited = show_duration(longest_wait(self._record, operation))
        other = operation.other
        why = "any rank may be the other one"
        if other is not None:
            why = f"rank {other} waits in another message of both, whose tag may differ"
        text = f"rank {operation.key.by} waited {waited} in {operation.title}; {why}"
        self._add(Finding("unknown", text, operation=operation.key))

    def _unknown_group(self, operation: Operation) -> None:
        waited = show_duration(longest_wait(self._record, operation))
        text = (
            f"{ranks_text(operation.waiting)} waited {waited} in {operation.title} of group "
            f"{operation.key.group}; cannot tell for whom: the record does not have the ranks "
            "of that group"
        )
        self._add(Finding("unknown", text, operation=operation.key))

    def _look_at_process(self, kind: str, index: int) -> None:
        """Reports a process that is down although nobody is seen to wait for it."""
        if not is_down(self._record, kind, index):
            return
        processes = self._record.ranks if kind == "rank" else self._record.servers
        process = processes.get(index)
        host = f" ({process.host})" if process is not None and process.host else ""
        text = f"{kind} {index}{host}: {note(self._record, kind, index)}"
        ranks, servers = ((index,), ()) if kind == "rank" else ((), (index,))
        self._add(Finding("stopped", text, ranks, servers))

    def _nothing_wrong(self) -> Finding:
        failures = {p.failure for p in self._record.ranks.values() if p.failure}
        if failures:
            text = f"ranks failed, but not in an operation: {'; '.join(sorted(failures)[:3])}"
            ranks = [r for r, p in self._record.ranks.items() if p.failure]
            return Finding("failed", text, tuple(ranks))
        if not self._operations:
            return Finding("unknown", "the record has no operation, so it cannot tell anything")
        return Finding("healthy", "no rank waits for another: all operations have ended well")


def _first(sizes: dict[int, int], size: int) -> int:
    return min(rank for rank, one in sizes.items() if one == size)


def _minority(values: dict[int, int]) -> tuple[int, ...]:
    """Returns the ranks that differ from a majority of more than half; empty if there is none."""
    counts = {value: list(values.values()).count(value) for value in values.values()}
    if len(counts) < 2:
        return ()
    most = max(counts, key=lambda one: counts[one])
    if counts[most] * 2 <= len(values) or len(values) < 3:
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != most))
