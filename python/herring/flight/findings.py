"""What an analysis finds, and what a record says about a single process."""

from __future__ import annotations

import dataclasses
import re

from herring.flight.operations import Key, Operation
from herring.flight.record import Record

#: The kinds of findings, the most telling first.
RANKING = (
    "failed",  # a rank failed on its own, and the others only heard of it
    "mismatch",  # ranks gave different sizes, dtypes or operators to one operation
    "different",  # ranks called different operations at the same place
    "order",  # ranks called the same operations in different orders
    "missing",  # ranks never called an operation for which others wait
    "stopped",  # a process is stopped, silent or gone
    "late",  # ranks gave their data long after the others, or after these had given up
    "unready",  # ranks have begun an operation and not given all their data
    "node",  # the processes of a host did not combine their data
    "server",  # a server has all data and has not summed it
    "result",  # a server has summed, but the result did not arrive
    "link",  # data left a rank, or should have, and did not reach a server
    "unknown",  # the record does not tell
    "computing",  # all ranks are still computing
    "healthy",  # nobody waits
)

_STATES = {
    "stopped": "its process is stopped",
    "silent": "its process sends no reports any more",
    "unreachable": "its host cannot be reached",
    "lost": "its process has died",
    "left": "it has left the job",
    "starting": "it has not started yet",
}
_ACTIVITIES = (
    ("checkpoint", re.compile(r"checkpoint|torch/serialization|state_dict|\bsave", re.I)),
    ("data loader", re.compile(r"data_?loader|utils/data|dataset|\bload|collate|\bfetch", re.I)),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that an analysis found."""

    kind: str  # one of `RANKING`
    text: str  # a sentence about it, without a full stop
    # The ranks that the others wait for, or that differ; empty if none is to blame.
    ranks: tuple[int, ...] = ()
    servers: tuple[int, ...] = ()  # likewise servers
    operation: Key | None = None  # the operation in which it shows; None if it shows in none


def is_down(record: Record, kind: str, index: int) -> bool:
    """Returns whether a process is stopped, silent, out of reach or gone."""
    if (kind, index) in record.silent:
        return True
    process = (record.ranks if kind == "rank" else record.servers).get(index)
    return process is not None and process.state in _STATES and process.state != "starting"


def note(record: Record, kind: str, index: int) -> str:
    """Returns what is known about the state of a process, as a clause; may be empty."""
    if (kind, index) in record.silent:
        return record.silent[kind, index]
    process = (record.ranks if kind == "rank" else record.servers).get(index)
    return "" if process is None else _STATES.get(process.state, "")


def doing(record: Record, kind: str, index: int) -> str:
    """Returns what a process was doing, as a clause; empty if nothing is known."""
    process = (record.ranks if kind == "rank" else record.servers).get(index)
    told = note(record, kind, index)
    if process is None:
        return told
    if process.stack:
        names = [name for name, words in _ACTIVITIES if words.search(process.stack)]
        program = f"program was in {process.stack}" + (f" ({names[0]})" if names else "")
        return f"{told}, and its {program}" if told else f"its {program}"
    if told:
        return told
    if process.failure:
        return f"it failed: {process.failure}"
    if process.where:
        return f"it {process.where}"
    return "its program was computing" if process.state == "computing" else ""


def longest_wait(record: Record, operation: Operation) -> float:
    """Returns how long ranks have waited in an operation at most, in seconds."""
    waits = [0.0]
    for rank in operation.waiting:
        entry = operation.calls[rank]
        since = entry.ready if entry.ready is not None else entry.called
        if since is not None:
            waits.append((entry.done or record.time) - since)
    return max(waits)


def end_of(operation: Operation) -> float:
    """Returns when an operation ended on its last rank; 0 if no rank tells."""
    return max((entry.done or 0.0 for entry in operation.calls.values()), default=0.0)
