"""Makes text and JSON of an analysis."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from herring.base.units import ranks_text, show_duration, show_size
from herring.flight.analysis import Analysis
from herring.flight.findings import doing, end_of
from herring.flight.operations import Operation, describe
from herring.flight.record import Entry, Record
from herring.terminal.printing import aligned

_BEFORE, _AFTER = 4, 3  # operations shown around the first in which ranks differ
_MOMENTS = (
    ("ready", "gave its data"),
    ("reduced", "combined over the node"),
    ("pushed", "sent"),
    ("done", "done"),
)


def as_text(
    record: Record, analysis: Analysis, *, everything: bool = False, rank: int | None = None
) -> str:
    """Returns a report for people, which begins with the verdict.

    Args:
        everything: Whether to list all operations instead of those around the first difference.
        rank: The rank whose operations are listed with their moments; None compares the ranks.
    """
    lines = [analysis.verdict, ""]
    if len(analysis.findings) > 1:
        lines += ["also found:"]
        lines += [f"  {one.text}" for one in analysis.findings[1:]]
        lines += [""]
    lines += [*_header(record), ""]
    lines += _landmarks(record, analysis)
    shown = _shown(analysis, everything)
    if rank is not None:
        lines += _of_rank(record, analysis, rank, shown)
    elif shown:
        lines += _table(record, analysis, shown)
        left = len(analysis.operations) - len(shown)
        if left:
            lines += ["", f"{left} more operations are in the record (--all shows them)"]
    return "\n".join(lines)


def as_json(record: Record, analysis: Analysis) -> dict[str, Any]:
    """Returns the analysis as a document."""

    def title(operation: Operation | None) -> str | None:
        return None if operation is None else operation.title

    titles = {one.key: one.title for one in analysis.operations}
    return {
        "schema": "herring-flight-analysis-1",
        "job": record.job,
        "time": record.time,
        "why": record.why,
        "size": record.size,
        "verdict": analysis.verdict,
        "findings": [
            {
                "kind": one.kind,
                "text": one.text,
                "ranks": list(one.ranks),
                "servers": list(one.servers),
                "operation": None if one.operation is None else titles[one.operation],
            }
            for one in analysis.findings
        ],
        "last_common": title(analysis.last_common),
        "first_different": title(analysis.first_different),
        "operations": [
            {
                "operation": one.title,
                "group": one.key.group,
                "begun": one.begun,
                "ranks": {
                    str(rank): state_of(analysis, place, rank) for rank in range(record.size)
                },
            }
            for place, one in enumerate(analysis.operations)
        ],
    }


def state_of(analysis: Analysis, place: int, rank: int) -> str:
    """Returns what a rank has done in an operation, in a word or two."""
    operation = analysis.operations[place]
    entry = operation.calls.get(rank)
    if entry is None:
        if operation.members is not None and rank not in operation.members:
            return "-"
        if rank in analysis.absent.get(place, ()):
            return "never called"
        return "?" if rank in analysis.unsure.get(place, ()) else "-"
    if entry.finished:
        return "done"
    if entry.outcome is not None:
        return f"failed: {entry.outcome}"
    return "waits" if entry.ready is not None else "computes"


def _header(record: Record) -> list[str]:
    # A file may hold any number; the report must not fail because of it.
    try:
        moment = datetime.datetime.fromtimestamp(record.time, datetime.UTC)
        when = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        when = f"second {record.time:g}"
    job = f"job '{record.job}', " if record.job else ""
    lines = [f"{job}{when}: {record.why}" if record.why else f"{job}{when}"]
    absent = [rank for rank in range(record.size) if rank not in record.ranks]
    have = f"{record.size} ranks, {len(record.servers)} servers"
    if absent:
        have += f"; no record came from {ranks_text(absent)}"
    return [*lines, have]


def _landmarks(record: Record, analysis: Analysis) -> list[str]:
    lines = []
    if (last := analysis.last_common) is not None:
        before = show_duration(record.time - end_of(last))
        lines.append(f"last operation that all ranks completed: {last.title} ({before} before)")
    if (first := analysis.first_different) is not None:
        lines.append(f"first operation in which ranks differ: {first.title}")
    return [*lines, ""] if lines else []


def _shown(analysis: Analysis, everything: bool) -> list[int]:
    """Returns the places of the operations that a report lists."""
    places = list(range(len(analysis.operations)))
    if everything or not places:
        return places
    marks = {
        place
        for place, one in enumerate(analysis.operations)
        if any(one.key == finding.operation for finding in analysis.findings)
        or one is analysis.first_different
    }
    if not marks:
        return places[-_BEFORE - _AFTER :]
    first, last = min(marks), max(marks)
    if last - first > _BEFORE + _AFTER:
        last = first + _AFTER
    return [place for place in places if first - _BEFORE <= place <= last + _AFTER]


def _table(record: Record, analysis: Analysis, places: Sequence[int]) -> list[str]:
    """Returns one row for each operation, and one column for ranks that did the same."""
    columns: dict[tuple[str, ...], list[int]] = {}
    for rank in range(record.size):
        states = tuple(state_of(analysis, place, rank) for place in places)
        columns.setdefault(states, []).append(rank)
    rows = [["", *(ranks_text(ranks) for ranks in columns.values())]]
    for index, place in enumerate(places):
        operation = analysis.operations[place]
        mark = "> " if operation is analysis.first_different else "  "
        cells = [
            _cell(record, states[index], [operation.calls.get(rank) for rank in ranks])
            for states, ranks in columns.items()
        ]
        rows.append([f"{mark}{operation.title}", *cells])
    return aligned(rows)


def _cell(record: Record, state: str, entries: Iterable[Entry | None]) -> str:
    """Returns a state with the longest duration among ranks that have it."""
    spans = []
    for entry in entries:
        if entry is not None and entry.called is not None:
            since = entry.ready if state == "waits" and entry.ready else entry.called
            spans.append((entry.done if entry.done is not None else record.time) - since)
    if not spans:
        return state
    if state == "done":
        return f"done in {show_duration(max(0.0, *spans))}"
    return f"{state} {'after' if 'failed' in state else 'since'} {show_duration(max(0.0, *spans))}"


def _of_rank(record: Record, analysis: Analysis, rank: int, places: Sequence[int]) -> list[str]:
    """Returns the operations of one rank with their moments."""
    text = doing(record, "rank", rank) or "nothing is known about its program"
    lines = [f"{describe([rank], record)}: {text}", ""]
    rows = []
    for place in places:
        operation = analysis.operations[place]
        entry = operation.calls.get(rank)
        if entry is None:
            state = state_of(analysis, place, rank)
            if state != "-":
                rows.append(["", operation.title, "", state])
            continue
        began = entry.called or entry.ready or record.time
        moments = [
            f"{word} after {show_duration(max(moment - began, 0.0))}"
            for name, word in _MOMENTS
            if (moment := getattr(entry, name)) is not None
        ]
        ended = "" if entry.finished else state_of(analysis, place, rank)
        ago = f"{show_duration(max(record.time - began, 0.0))} before"
        parts = ", ".join([*moments, *([ended] if ended else [])])
        rows.append([ago, operation.title, show_size(entry.bytes), parts])
    return lines + aligned(rows)
