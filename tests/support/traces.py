"""Reads Chrome traces strictly, as the trace event format describes them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Slice", "Trace"]

FIELDS = {
    "M": {"ph", "pid", "name", "args"},
    "C": {"ph", "pid", "ts", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name"},
}
METADATA = {
    "herring": {"job": str},
    "process_name": {"name": str},
    "process_sort_index": {"sort_index": int},
    "process_labels": {"labels": str},
    "thread_name": {"name": str},
}
CLOCK = {"offset_us", "error_us", "lost"}


@dataclass(frozen=True)
class Slice:
    """One slice; times are microseconds."""

    process: str
    row: str
    name: str
    begin: float
    end: float
    args: dict[str, Any]


class Trace:
    """A trace of a job.

    Args:
      path: the file.
      cut: whether the file may lack its end.

    Raises:
      AssertionError: the file breaks the format, or slices of a row overlap.
    """

    def __init__(self, path: Path, cut: bool = False) -> None:
        text = path.read_text(encoding="utf-8")
        if cut and not text.endswith("]\n"):
            text = text[: text.rindex(",\n")] + "]"
        self.processes: dict[int, str] = {}
        self.rows: dict[tuple[int, int], str] = {}
        self.clocks: dict[str, dict[str, float]] = {}
        self.slices: list[Slice] = []
        events = json.loads(text)
        assert isinstance(events, list)
        for event in events:
            self._add(event)
        self._nest()

    def _add(self, event: dict[str, Any]) -> None:
        phase, name, args = event["ph"], event["name"], event.get("args", {})
        extra = set(event) - FIELDS[phase] - ({"args"} if phase == "X" else set())
        assert FIELDS[phase] <= set(event), event
        assert extra <= ({"tid"} if name == "thread_name" else set()), event
        pid = event["pid"]
        assert isinstance(pid, int) and isinstance(name, str) and name, event
        if phase == "M":
            if name == "herring_clock":
                assert set(args) == CLOCK, event
                self.clocks[self.processes[pid]] = args
                return
            ((key, kind),) = METADATA[name].items()
            assert set(args) == {key} and isinstance(args[key], kind), event
            if name == "process_name":
                assert pid not in self.processes, event
                self.processes[pid] = args["name"]
            if name == "thread_name":
                assert (pid, event["tid"]) not in self.rows, event
                self.rows[pid, event["tid"]] = args["name"]
            return
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0, event
        if phase == "C":
            assert set(args) == {"us"} and args["us"] >= 0, event
            return
        assert event["dur"] > 0, event
        row = self.rows[pid, event["tid"]]  # It is named before its first slice.
        begin, end = round(event["ts"], 1), round(event["ts"] + event["dur"], 1)
        self.slices.append(Slice(self.processes[pid], row, name, begin, end, args))

    def _nest(self) -> None:
        """Checks that slices of a row follow or contain each other."""
        rows = defaultdict(list)
        for one in self.slices:
            rows[one.process, one.row].append(one)
        for slices in rows.values():
            open_: list[Slice] = []
            for one in sorted(slices, key=lambda one: (one.begin, -one.end)):
                while open_ and open_[-1].end <= one.begin:
                    open_.pop()
                assert not open_ or one.end <= open_[-1].end, (open_[-1], one)
                open_.append(one)

    def of(self, name: str, process: str = "", row: str = "") -> list[Slice]:
        """Returns the slices with this name, in processes and rows whose names begin so."""
        return [
            one
            for one in self.slices
            if one.name == name and one.process.startswith(process) and one.row.startswith(row)
        ]
