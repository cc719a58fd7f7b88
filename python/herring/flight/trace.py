"""Makes a Chrome trace of a flight record, for chrome://tracing or ui.perfetto.dev."""

from __future__ import annotations

from typing import Any

from herring.flight.operations import Key
from herring.flight.record import Entry, Process, Record

# What a process does between two moments of an entry, by the moment at the end.
_PARTS = (
    ("called", "ready", "gives its data"),
    ("ready", "reduced", "node combines"),
    ("reduced", "pushed", "sends"),
    ("ready", "pushed", "sends"),
    ("pushed", "done", "waits for the result"),
)
_SUM_PARTS = (
    ("called", "ready", "waits for ranks"),
    ("ready", "summed", "sums"),
    ("summed", "done", "sends results"),
)


def as_trace(record: Record) -> dict[str, Any]:
    """Returns the trace as a document: one process for each rank and server.

    Entries that had not ended last until the record was written, and their names say so.
    """
    events: list[dict[str, Any]] = []
    for offset, processes in ((0, record.ranks), (100_000, record.servers)):
        for index, process in sorted(processes.items()):
            events += _of_process(process, offset + index, record.time)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"job": record.job, "why": record.why, "herring": record.herring},
    }


def _of_process(process: Process, pid: int, end: float) -> list[dict[str, Any]]:
    host = f" ({process.host})" if process.host else ""
    name = f"{process.kind} {process.index}{host}"
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}},
        {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}},
    ]
    for entry in process.entries:
        events += _of_entry(entry, pid, end)
    return events


def _of_entry(entry: Entry, pid: int, end: float) -> list[dict[str, Any]]:
    began = entry.called if entry.called is not None else entry.ready
    if began is None:
        return []
    title = Key(entry.group, entry.name, entry.place, entry.kind != "call").title
    if entry.kind == "buffer":
        title += f" buffer {entry.buffer}"
    outcome = entry.outcome or "not ended"
    whole = title if entry.finished else f"{title} ({outcome})"
    arguments = {"bytes": entry.bytes, "group": entry.group, "outcome": outcome}
    # Entries of a process overlap without being nested, so they are asynchronous events.
    shared = {"cat": entry.kind, "pid": pid, "tid": 0, "id": f"{pid}.{entry.id}"}
    events = [
        {"ph": "b", "name": whole, "ts": began * 1e6, "args": arguments, **shared},
        {"ph": "e", "name": whole, "ts": (entry.done or end) * 1e6, **shared},
    ]
    for first, last, what in _SUM_PARTS if entry.kind == "sum" else _PARTS:
        start, stop = getattr(entry, first), getattr(entry, last)
        combined = first == "ready" and last == "pushed" and entry.reduced is not None
        if start is None or stop is None or combined:
            continue
        events.append({"ph": "b", "name": what, "ts": start * 1e6, **shared})
        events.append({"ph": "e", "name": what, "ts": stop * 1e6, **shared})
    return events
