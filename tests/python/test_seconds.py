"""Where the time of a program goes: the split of recorded entries, and herring.stats()."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from jobs import LAYOUTS, expect_success, program, run_job

pytest.importorskip("herring._core")
from herring.arrays import seconds
from herring.arrays.seconds import Meter, StepMeter, split

MOMENTS = ("called", "ready", "reduced", "pushed", "summed", "done")


def entry(number: int, kind: str, outcome: str | None = "ok", **others: float) -> dict[str, Any]:
    moments = {name: others.pop(name, None) for name in MOMENTS}
    return {"id": number, "kind": kind, "outcome": outcome, "waited": 0.0, **moments, **others}


STEP = [
    entry(1, "round", called=10.0, ready=12.0, done=15.0, waited=2.5),
    entry(2, "buffer", ready=11.0, reduced=11.5, pushed=12.0, done=14.0),
    entry(3, "buffer", ready=11.25, reduced=12.0, pushed=12.5, done=15.0),
]


def test_a_step_is_split() -> None:
    assert split(STEP) == {
        "rounds": 1,
        "calls": 0,
        "missed": 0,
        "seconds": 5.0,
        "compute": 2.5,
        "exposed": 2.5,
        "node_stage": 1.0,  # from 11.0 to 12.0, although two buffers were there
        "push": 1.0,  # from 11.5 to 12.5
        "pull": 3.0,  # from 12.0 to 15.0
    }
    assert split(reversed(STEP)) == split(STEP)


def test_without_a_node_stage_a_buffer_is_pushed_when_it_is_ready() -> None:
    found = split([entry(1, "call", called=1.0, ready=2.0, pushed=3.0, done=3.5, waited=1.0)])
    assert (found["node_stage"], found["push"], found["pull"]) == (0.0, 1.0, 0.5)
    assert (found["rounds"], found["calls"], found["compute"]) == (0, 1, 1.5)


def test_a_round_that_closed_without_this_rank_was_never_called() -> None:
    closed = entry(1, "round", done=4.0)
    assert split([closed, entry(2, "call", called=3.0, done=5.0)])["seconds"] == 2.0
    assert split([closed])["seconds"] == 0.0


def test_what_has_not_ended_does_not_count() -> None:
    nothing = split([])
    assert not any(nothing.values())
    assert split([entry(1, "round", outcome=None, called=1.0)]) == nothing
    failed = split([entry(1, "call", "timeout", called=1.0, done=4.0, waited=3.0)])
    assert (failed["calls"], failed["exposed"], failed["pull"]) == (1, 3.0, 0.0)


class Job:
    """Stands in for a job: a recorder with room for `room` entries."""

    def __init__(self, room: int = 4096) -> None:
        self.room = room
        self.entries: list[dict[str, Any]] = []
        self.asked: list[int] = []
        self.waited = 0.0

    def add(self, entries: Iterable[dict[str, Any]]) -> None:
        self.entries += entries

    def recorded(self, most: int) -> list[dict[str, Any]]:
        self.asked.append(most)
        return self.entries[-min(most, self.room) :]

    def activity(self) -> dict[str, Any]:
        kinds = [one["kind"] for one in self.entries]
        rounds, calls = kinds.count("round"), kinds.count("call")
        return {"rounds": rounds, "calls": calls, "waited": self.waited}

    def stats(self) -> dict[str, Any]:
        sent, received = 10 * len(self.entries), len(self.entries)
        return {"bytes_sent": sent, "bytes_received": received, "late_seconds": 0.125}


def calls(first: int, last: int) -> Iterable[dict[str, Any]]:
    for number in range(first, last + 1):
        at = float(number)
        yield entry(number, "call", called=at, ready=at, pushed=at + 0.25, done=at + 0.5)


def test_a_meter_counts_every_entry_once() -> None:
    job = Job()
    job.add(calls(1, 3))
    meter = Meter(job)
    assert meter.read()["last"]["push"] == 0.0  # what was before
    job.add(calls(4, 300))
    job.waited = 1.0
    assert meter.read()["last"]["push"] == 297 * 0.25
    job.add(calls(301, 302))
    job.asked.clear()
    found = meter.read()
    assert job.asked == [64]  # not all that the recorder has
    assert found["last"]["push"] == 0.5
    assert found["total"]["push"] == 299 * 0.25
    assert (found["last"]["calls"], found["total"]["calls"]) == (2, 299)
    assert found["total"]["missed"] == 0


def test_a_meter_asks_for_no_more_if_the_oldest_entry_is_the_first_new_one() -> None:
    job = Job()
    meter = Meter(job)
    job.add(calls(1, 64))
    job.asked.clear()
    assert meter.read()["last"]["calls"] == 64
    assert job.asked == [64]


def test_a_meter_counts_what_ends_later() -> None:
    job = Job()
    meter = Meter(job)
    job.add(calls(1, 3))
    open_one = job.entries[1]
    done, open_one["outcome"] = open_one["done"], None
    assert meter.read()["last"]["push"] == 0.5
    job.add(calls(4, 4))
    open_one.update(done=done, outcome="ok")
    found = meter.read()
    assert (found["last"]["push"], found["total"]["push"]) == (0.5, 1.0)
    assert meter.read()["last"]["push"] == 0.0


def test_a_meter_says_what_the_recorder_has_forgotten(monkeypatch: Any) -> None:
    monkeypatch.setattr(seconds, "_MOST", 100)
    job = Job(room=100)
    meter = Meter(job)
    job.add(calls(1, 1000))
    found = meter.read()["last"]
    assert (found["missed"], found["calls"], found["push"]) == (900, 1000, 25.0)


def test_a_meter_splits_the_time_since_the_last_look(monkeypatch: Any) -> None:
    now = iter([100.0, 110.0, 111.0])
    monkeypatch.setattr(seconds.time, "monotonic", lambda: next(now))
    job = Job()
    meter = Meter(job)
    job.waited = 4.0
    found = meter.read()["last"]
    assert (found["seconds"], found["exposed"], found["compute"]) == (10.0, 4.0, 6.0)
    job.waited = 4.25
    found = meter.read()
    assert (found["last"]["exposed"], found["last"]["compute"]) == (0.25, 0.75)
    assert (found["total"]["exposed"], found["total"]["seconds"]) == (4.25, 11.0)


def test_steps_are_averaged_without_pauses(monkeypatch: Any) -> None:
    now = iter([0.0, 3.0, 50.0, 55.0, 60.0])
    monkeypatch.setattr(seconds.time, "monotonic", lambda: next(now))
    job, meter = Job(), StepMeter()
    assert meter.read() == {}
    meter.step(job)
    assert meter.read() == {}
    job.add(calls(1, 4))
    job.waited = 1.0
    meter.step(job)
    meter.pause()
    job.add(calls(5, 100))
    job.waited = 30.0
    meter.resume()
    meter.step(job)
    assert meter.steps == 2
    assert meter.read() == {
        "herring/step_seconds": 4.0,
        "herring/compute_seconds": 3.5,
        "herring/exposed_seconds": 0.5,
        "herring/node_stage_seconds": 0.0,
        "herring/push_seconds": 0.5,
        "herring/pull_seconds": 0.5,
        "herring/bytes_sent": 20.0,
        "herring/bytes_received": 2.0,
        "herring/late_seconds": 0.125,
    }
    assert meter.steps == 0


def test_steps_of_another_job_begin_anew() -> None:
    meter = StepMeter()
    for job in Job(), Job():
        meter.step(job)
        assert meter.read() == {}
        meter.step(job)
        assert meter.read()["herring/step_seconds"] > 0


@pytest.mark.parametrize("layout", ["alone", "one-node", "dedicated-servers"])
def test_stats_of_a_job_have_seconds(layout: str, tmp_path: Path) -> None:
    expect_success(run_job(LAYOUTS[layout], program("seconds"), FOLDER=str(tmp_path)))


def test_a_late_rank_learns_by_how_much() -> None:
    layout = ["-n", "3", "--servers", "1"]
    expect_success(run_job(layout, program("late_stats")))
