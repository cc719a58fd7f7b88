"""Writes flight records as PyTorch's flight recorder does, for ``torchfrtrace``.

PyTorch has one file for each rank: a pickle of dictionaries, lists, texts and numbers. Its analyzer
compares the n-th collective of a group on all ranks. Herring's operations meet by their names, so
the number of an operation is its place among all operations of its group. Ranks that wait for each
other in different operations called them at the same place, so these share a number.
"""

from __future__ import annotations

import pickle
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from herring.errors import ConfigurationError
from herring.flight.analysis import Analysis
from herring.flight.operations import Operation
from herring.flight.record import Entry, Process, Record

#: The beginning of the names of the files; the rank follows.
PREFIX = "nccl_trace_rank_"
_VERSION = "2.10"
# The analyzer accepts the names of some libraries only, and Herring's is not among them.
_LIBRARY = "nccl"
# PyTorch's word for each of Herring's collectives. A size may differ between ranks in those with v.
_WORDS = {
    "": "all_reduce",
    "allgather": "all_gather_v",
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "barrier": "barrier",
    "broadcast": "broadcast",
    "gather": "all_to_all",
    "join": "barrier",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter_v",
    "scatter": "all_to_all",
}
# The record has the bytes that a rank gave; in these collectives they are its own number.
_UNEVEN = ("all_gather_v", "all_to_all", "reduce_scatter_v", "barrier")
_FRAME = re.compile(r"(?P<file>\S+):(?P<line>\d+) in (?P<name>[\w.<>]+)")


def convert(record: Record, analysis: Analysis) -> dict[int, dict[str, Any]]:
    """Returns what PyTorch would have recorded on each rank whose record came."""
    places = _places(analysis)
    groups = _groups(record, analysis)
    dumps = {}
    for rank, process in record.ranks.items():
        entries = [
            _entry(operation, operation.calls[rank], record, places[index], groups)
            for index, operation in enumerate(analysis.operations)
            if rank in operation.calls and operation.key.group in groups
        ]
        entries.sort(key=lambda one: one["record_id"])
        if entries and process.entries and process.entries[0].id <= 1:
            # The analyzer drops what is older than the oldest entry of any rank. This rank has
            # dropped nothing.
            entries[0]["record_id"] = 0
        _show_program(process, entries)
        dumps[rank] = {
            "version": _VERSION,
            "entries": entries,
            "pg_config": {
                name: {"name": name, "desc": desc, "ranks": str(list(ranks))}
                for name, desc, ranks in groups.values()
                if rank in ranks
            },
            "pg_status": {},
        }
    return dumps


def write(record: Record, analysis: Analysis, folder: Path) -> list[Path]:
    """Writes one file for each rank whose record came, and returns their paths.

    Args:
        folder: Where to write; made if it does not exist.

    Raises:
        ConfigurationError: The folder has files of other ranks, which the analyzer would mix with
            these.
        OSError: The folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    dumps = {folder / f"{PREFIX}{rank}": d for rank, d in convert(record, analysis).items()}
    if others := sorted({*folder.glob(f"{PREFIX}*")} - {*dumps}):
        raise ConfigurationError(
            f"{folder} has {others[0].name}, of a rank that has no record here. PyTorch's analyzer "
            "would take it for one of this job: give another folder, or remove it"
        )
    for path, dump in dumps.items():
        path.write_bytes(pickle.dumps(dump, protocol=2))
    return sorted(dumps)


def _places(analysis: Analysis) -> list[tuple[int, int]]:
    """Returns each operation's place among all operations, and in its group; both from 1 on."""
    counts: dict[int, int] = defaultdict(int)
    places: list[tuple[int, int]] = []
    shared: dict[int, tuple[int, int]] = {}
    for index, operation in enumerate(analysis.operations):
        if index in shared:
            places.append(shared[index])
            continue
        counts[operation.key.group] += 1
        place = len(places) + 1, counts[operation.key.group]
        places.append(place)
        for other in _at_the_same_place(analysis, index):
            shared[other] = place
    return places


def _at_the_same_place(analysis: Analysis, index: int) -> list[int]:
    """Returns later operations whose ranks wait for those of this operation, and conversely."""
    mine = analysis.operations[index]
    return [
        other
        for other, one in enumerate(analysis.operations[index + 1 :], index + 1)
        if one.key.group == mine.key.group
        and set(analysis.absent.get(index, ())) & set(one.waiting)
        and set(analysis.absent.get(other, ())) & set(mine.waiting)
        and not set(one.calls) & set(mine.calls)
    ]


def _groups(record: Record, analysis: Analysis) -> dict[int, tuple[str, str, tuple[int, ...]]]:
    """Returns name, description and ranks of each group whose ranks are known."""
    groups = {0: ("0", "default_pg", tuple(range(record.size)))}
    for operation in analysis.operations:
        group = operation.key.group
        if group not in groups and operation.members is not None:
            name = record.group_names.get(group, f"herring group {group}")
            groups[group] = (str(group), name, operation.members)
    return groups


def _entry(
    operation: Operation,
    entry: Entry,
    record: Record,
    place: tuple[int, int],
    groups: dict[int, tuple[str, str, tuple[int, ...]]],
) -> dict[str, Any]:
    name, desc, _ = groups[operation.key.group]
    word = _WORDS.get(operation.collective, "all_reduce")
    size = [] if word in _UNEVEN else [entry.bytes]
    state = "started" if entry.ready is not None else "scheduled"
    return {
        "frames": [],
        "record_id": place[0],
        "pg_id": operation.key.group,
        "process_group": (name, desc),
        "collective_seq_id": place[1],
        "p2p_seq_id": 0,
        "op_id": place[0],
        "profiling_name": f"{_LIBRARY}:{word}",
        "herring_name": operation.title,
        "time_created_ns": _nanoseconds(entry.called),
        "time_discovered_started_ns": _nanoseconds(entry.ready) or None,
        "time_discovered_completed_ns": _nanoseconds(entry.done) or None,
        "duration_ms": None if entry.done is None else (entry.done - (entry.called or 0.0)) * 1e3,
        "input_sizes": [size],
        "input_dtypes": ["Byte"],
        "output_sizes": [size],
        "output_dtypes": ["Byte"],
        "state": "completed" if entry.finished else state,
        "retired": entry.outcome is not None,
        "timeout_ms": 0,
        "is_p2p": False,
    }


def _show_program(process: Process, entries: list[dict[str, Any]]) -> None:
    """Adds where the program was to the rank's last collective, the only place that has frames."""
    frames = [
        {"name": one["name"], "filename": one["file"], "line": int(one["line"])}
        for one in _FRAME.finditer(process.stack)
    ]
    if entries and frames:
        entries[-1]["frames"] = frames


def _nanoseconds(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * 1e9)
