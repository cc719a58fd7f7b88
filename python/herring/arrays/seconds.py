"""Where the time of a program goes: how long it computes, waits, and keeps each part busy.

A worker records its rounds and calls, with the moments that they pass (see docs/how-to/
monitoring.md). This module sums them up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

from herring import _core

_FEWEST = 64  # entries that a meter asks for at first
_MOST = 4096  # entries that a worker keeps


class Split(TypedDict):
    """What a span of time consisted of. All but counts are seconds.

    `compute` and `exposed` together are `seconds`. The last three overlap with both of them and
    with one another: each says how long this part of Herring had at least one buffer or call.
    Without recording (``HERRING_OBSERVE=0``) they are 0.

    Attributes:
      rounds: Rounds of planned reductions that the program began; usually one in a step.
      calls: Other operations that it began.
      missed: Rounds, buffers and calls that were forgotten before they were counted here.
      seconds: The span of time.
      compute: How long no thread of the program waited for a result.
      exposed: How long a thread of the program waited for a result.
      node_stage: How long data was being combined with that of the other workers of the node.
      push: How long data of this worker was on its way to the servers.
      pull: How long the worker then waited for results: for other ranks, sums and the way back.
    """

    rounds: int
    calls: int
    missed: int
    seconds: float
    compute: float
    exposed: float
    node_stage: float
    push: float
    pull: float


class Seconds(TypedDict):
    """The split of two spans of time.

    Attributes:
      last: Since the last look, or since `init`.
      total: Since `init`.
    """

    last: Split
    total: Split


def split(entries: Iterable[dict[str, Any]]) -> Split:
    """Returns the split of the time that recorded rounds, buffers and calls cover.

    Args:
      entries: Entries of this worker as in a flight record, in any order. Those that have not ended
        do not count.
    """
    ended = [entry for entry in entries if entry["outcome"] is not None]
    asked = [entry for entry in ended if entry["kind"] in ("round", "call")]
    parts = [entry for entry in ended if entry["kind"] in ("buffer", "call")]
    last = max((_latest(entry) for entry in asked), default=0.0)
    # A partial all-reduce has rounds that closed before this rank had called.
    called = (entry["called"] for entry in asked if entry["called"] is not None)
    first = min(called, default=last)
    seconds = last - first
    exposed = min(sum(entry["waited"] for entry in asked), seconds)
    return {
        "rounds": sum(entry["kind"] == "round" for entry in asked),
        "calls": sum(entry["kind"] == "call" for entry in asked),
        "missed": 0,
        "seconds": seconds,
        "compute": seconds - exposed,
        "exposed": exposed,
        "node_stage": _covered(_span(entry, ("ready",), "reduced") for entry in parts),
        "push": _covered(_span(entry, ("reduced", "ready"), "pushed") for entry in parts),
        "pull": _covered(_span(entry, ("pushed",), "done") for entry in parts),
    }


def _latest(entry: dict[str, Any]) -> float:
    moments = [entry[name] for name in ("called", "done") if entry[name] is not None]
    return max(moments, default=0.0)


def _span(entry: dict[str, Any], begins: Sequence[str], end: str) -> tuple[float, float] | None:
    """Returns the time from the first of the moments that an entry has to another one."""
    begin = next((entry[name] for name in begins if entry[name] is not None), None)
    if begin is None or entry[end] is None or entry[end] <= begin:
        return None
    return begin, entry[end]


def _covered(spans: Iterable[tuple[float, float] | None]) -> float:
    """Returns the length of the union of spans."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(span for span in spans if span is not None):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


class Meter:
    """Splits the time since the last look at a job. Thread-safe."""

    def __init__(self, job: _core.Job) -> None:
        """Begins to measure."""
        self._job = job
        self._lock = threading.Lock()
        self._first = 1  # the oldest entry that has not been counted
        self._counted: set[int] = set()  # entries after it that have been
        self._then = time.monotonic()
        activity = job.activity()
        self._begun = (activity["rounds"], activity["calls"], activity["waited"])
        self._total = split(())
        self._new_entries()  # those of before do not count

    def read(self) -> Seconds:
        """Returns the split since the last call, and since the meter began."""
        with self._lock:
            entries, missed = self._new_entries()
            now, activity = time.monotonic(), self._job.activity()
            begun = (activity["rounds"], activity["calls"], activity["waited"])
            last = split(entries)
            # These are exact, whatever the recorder has forgotten.
            last["rounds"], last["calls"] = begun[0] - self._begun[0], begun[1] - self._begun[1]
            last["missed"] = missed
            last["seconds"] = now - self._then
            last["exposed"] = min(max(begun[2] - self._begun[2], 0.0), last["seconds"])
            last["compute"] = last["seconds"] - last["exposed"]
            self._begun, self._then = begun, now
            self._total = _sum(self._total, last)
            return {"last": last, "total": self._total}

    def _new_entries(self) -> tuple[list[dict[str, Any]], int]:
        """Returns entries that have ended since the last call, and how many were forgotten."""
        most = _FEWEST
        while True:
            entries = self._job.recorded(most)
            if len(entries) < most or most >= _MOST or entries[0]["id"] <= self._first:
                break
            most = min(most * 8, _MOST)
        if not entries:
            return [], 0
        gone = range(self._first, entries[0]["id"])
        missed = len(gone) - sum(counted in gone for counted in self._counted)
        first = max(self._first, entries[0]["id"])
        found = [
            entry
            for entry in entries
            if entry["id"] >= first
            and entry["outcome"] is not None
            and entry["id"] not in self._counted
        ]
        open_ids = [e["id"] for e in entries if e["id"] >= first and e["outcome"] is None]
        self._first = min(open_ids, default=entries[-1]["id"] + 1)
        self._counted = {
            e["id"] for e in entries if e["id"] > self._first and e["outcome"] is not None
        }
        return found, missed


def _sum(one: Split, other: Split) -> Split:
    return {
        "rounds": one["rounds"] + other["rounds"],
        "calls": one["calls"] + other["calls"],
        "missed": one["missed"] + other["missed"],
        "seconds": one["seconds"] + other["seconds"],
        "compute": one["compute"] + other["compute"],
        "exposed": one["exposed"] + other["exposed"],
        "node_stage": one["node_stage"] + other["node_stage"],
        "push": one["push"] + other["push"],
        "pull": one["pull"] + other["pull"],
    }


class StepMeter:
    """Averages over a program's steps, for a board that shows metrics. Not thread-safe."""

    def __init__(self) -> None:
        """Begins to measure with the first call of `step`."""
        self._job: _core.Job | None = None
        self._meter: Meter | None = None  # None: it is paused, or has not begun
        self._before: dict[str, Any] = {}  # what the job had counted when the meter began
        self._late = 0.0
        self._sums: dict[str, float] = {}
        self._steps = 0

    def step(self, job: _core.Job, steps: int = 1) -> None:
        """Counts steps that have ended; the first call of a job only begins to measure."""
        if job is self._job:
            self._steps += steps
            return
        self._job, self._sums, self._steps = job, {}, 0
        self.resume()

    @property
    def steps(self) -> int:
        """How many steps have ended since the last `read`."""
        return self._steps

    def pause(self) -> None:
        """Leaves out what follows until `resume`, such as an evaluation."""
        if self._meter is None or self._job is None:
            return
        last, now = self._meter.read()["last"], self._job.stats()
        self._meter = None
        values = {
            "herring/step_seconds": last["seconds"],
            "herring/compute_seconds": last["compute"],
            "herring/exposed_seconds": last["exposed"],
            "herring/node_stage_seconds": last["node_stage"],
            "herring/push_seconds": last["push"],
            "herring/pull_seconds": last["pull"],
            "herring/bytes_sent": float(now["bytes_sent"] - self._before["bytes_sent"]),
            "herring/bytes_received": float(now["bytes_received"] - self._before["bytes_received"]),
        }
        self._late = now["late_seconds"]
        self._sums = {name: self._sums.get(name, 0.0) + more for name, more in values.items()}

    def resume(self) -> None:
        """Goes on measuring."""
        if self._job is not None and self._meter is None:
            self._meter, self._before = Meter(self._job), self._job.stats()

    def read(self) -> dict[str, float]:
        """Returns the mean of a step since the last `read`; empty if no step has ended.

        Returns:
          ``herring/step_seconds``, ``herring/compute_seconds``, ``herring/exposed_seconds``,
          ``herring/node_stage_seconds``, ``herring/push_seconds`` and ``herring/pull_seconds``
          (see `Split`), ``herring/bytes_sent`` and ``herring/bytes_received``; and
          ``herring/late_seconds``, which is `Stats.late_seconds` of `herring.stats`.
        """
        if self._steps == 0:
            return {}
        self.pause()
        values = {name: total / self._steps for name, total in self._sums.items()}
        self._sums, self._steps = {}, 0
        self.resume()
        return {**values, "herring/late_seconds": self._late}
