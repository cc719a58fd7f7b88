"""Recorded rounds are repeated bit for bit, whatever the delays; errors name what cannot be."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from herring.errors import InvalidArgumentError
from herring.partial.replay import Replay, read
from jobs import expect_success, program, run_job

LAYOUTS = {
    "one-node": ["-n", "4"],
    "dedicated": ["-n", "4", "--nodes", "2", "--servers", "2"],
}


def test_a_replay_gives_the_same_bits(tmp_path: pathlib.Path) -> None:
    for name, layout in LAYOUTS.items():
        path = tmp_path / f"{name}.json"
        script = program("replay_training_twice")
        expect_success(run_job(layout, script, RECORDING=str(path)))
        # The recording is complete, and a later job can repeat it too.
        later = """
        from herring.partial.replay import read
        from replay_training import train
        herring.init()
        weights, digest, lists, steps = train(
            300, herring.Replay(os.environ["RECORDING"]), 4, herring.RoundStatistics())
        recorded = read(os.environ["RECORDING"])["series"][0]["rounds"]
        assert [[[r, upto] for r, upto, _, _ in one] for one in lists] == recorded
        """
        assert len(read(path)["series"]) == 4
        expect_success(run_job(layout, later, RECORDING=str(path)))


def test_a_worker_that_flushes_first_misses_nothing_in_the_recording(
    tmp_path: pathlib.Path,
) -> None:
    expect_success(
        run_job(
            ["-n", "3"],
            program("replay_of_flushes"),
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


def test_what_cannot_be_repeated_is_named(tmp_path: pathlib.Path) -> None:
    expect_success(
        run_job(
            ["-n", "2"],
            program("replay_refused"),
            RECORDING=str(tmp_path / "rounds.json"),
        )
    )


def test_a_worker_lost_in_a_replay_fails_the_job(tmp_path: pathlib.Path) -> None:
    job = run_job(
        ["-n", "3", "--nodes", "3", "--servers", "1", "--keep-going"],
        program("replay_lost_rank"),
        RECORDING=str(tmp_path / "rounds.json"),
    )
    assert job.stdout.count("told") == 2, job.stdout[-4000:]


def _recording() -> dict[str, Any]:
    series = {
        "elements": 8,
        "dtype": "float32",
        "op": "average",
        "q": 1,
        "grace": 0.0,
        "staleness": 4,
        "divisor": "workers",
        "rounds": [[[0, 1]], [[0, 2], [1, 2]]],
        "steps": [[[0, 1], [1, 1]], [[0, 1], [1, 1]]],
    }
    return {"format": "herring recording", "version": 1, "workers": 2, "series": [series]}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r, s: None, None),
        (lambda r, s: r.update(version=2), "version 2; this release reads"),
        (lambda r, s: r.update(format="x"), "'x' version 1"),
        (lambda r, s: r.pop("workers"), "workers"),
        (lambda r, s: s.update(grace="1"), "grace '1'"),
        (lambda r, s: s.pop("divisor"), "divisor"),
        (lambda r, s: s["steps"].pop(), "steps of 1 worker, not of 2"),
        (lambda r, s: s["rounds"].insert(0, []), "round 0 has contributors []"),
        (lambda r, s: s["rounds"][0].append([2, 1]), "contributors [0, 2] of 2 workers"),
        (lambda r, s: s["rounds"][1].reverse(), "contributors [1, 0]"),
        (lambda r, s: s["rounds"].append([[0, 2]]), "counts contribution 2 of rank 0"),
        (lambda r, s: s["rounds"].pop(), "counts 1 of 2 steps of rank 0"),
        (lambda r, s: s["rounds"][0][0].append(0), "wrong"),
        (lambda r, s: s["steps"][0][0].__setitem__(0, 1), "made after 1 result"),
        (lambda r, s: s["steps"][0][1].__setitem__(0, 0), "made after 0 results, but at least 1"),
    ],
)
def test_a_damaged_recording_is_named(tmp_path: pathlib.Path, change: Any, text: str) -> None:
    path = tmp_path / "recording.json"
    recording = _recording()
    change(recording, recording["series"][0])
    path.write_text(json.dumps(recording))
    if text is None:
        assert read(path) == recording
        return
    with pytest.raises(InvalidArgumentError) as caught:
        read(path)
    assert str(path) in str(caught.value) and text in str(caught.value), caught.value


def test_a_cut_recording_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(_recording())[:100])
    with pytest.raises(InvalidArgumentError, match="not a readable recording"):
        read(path)
    assert repr(Replay("a.json")) == "Replay(path='a.json')"
