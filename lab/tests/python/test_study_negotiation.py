"""The study's cost of negotiation: sizes and moments, steps of all ways, and what tables say."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from herring.errors import ConfigurationError
from herring_lab.emulate.cluster import ClusterError
from herring_lab.emulate.strict import LateLinksError, LinkReport
from herring_lab.report import Table
from herring_lab.simulate import bert, catalogue
from herring_lab.study import cli, negotiation
from herring_lab.study.bench import Network
from herring_lab.study.experiments import Scale
from herring_lab.study.jobs import run_workers

ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))
_LATE = LateLinksError(LinkReport(1.0, 0.9, 100, 50, 2e-4, 1e-3, 9e-2, 1e-3, 0, 0))
WAYS = ("planned", "buffers", "gradients")


@pytest.mark.parametrize("model", negotiation.MODELS)
def test_gradients_keep_their_proportions_and_are_never_early(model: str) -> None:
    exact = catalogue.gradients(model)
    parts = negotiation.scaled(model, 2_500_000)
    assert sum(elements for elements, _ in parts) * 4 == 2_500_000
    factor = 625_000 / sum(gradient.elements for gradient in exact)
    for (elements, moment), gradient in zip(parts, exact, strict=True):
        assert elements == pytest.approx(gradient.elements * factor, rel=0.02, abs=1)
        assert 0 <= moment - gradient.moment <= bert.TOGETHER
    assert parts[-1][1] == 1
    assert all(before[1] <= after[1] for before, after in itertools.pairwise(parts))


def test_too_few_bytes_are_refused_before_anything_starts() -> None:
    def report(*_: object) -> None:
        raise AssertionError("started")

    with pytest.raises(ConfigurationError, match="--size 400: too few bytes for the 161"):
        negotiation.negotiation(Scale([2], 400, Network(), 1, report), 400, 0.1)


@pytest.mark.parametrize("compute", [0.0, 0.02])
def test_all_ways_average_and_only_a_plan_announces_nothing(compute: float) -> None:
    found = run_workers(
        "herring_lab.study.negotiation:steps",
        2,
        model="resnet-50",
        size=400_000,
        compute=compute,
        iterations=2,
    )
    ways = {one["way"]: one for one in found}
    assert tuple(ways) == WAYS
    for one in found:
        assert one["wrong"] == 0
        assert len(one["seconds"]) == 2
        assert all(seconds >= compute for seconds in one["seconds"])
    assert ways["planned"]["announced"] == 0
    assert ways["buffers"]["announced"] == ways["planned"]["operations"] > 1
    assert ways["gradients"]["announced"] == ways["gradients"]["operations"] == 161


def run_of(planned: float, buffers: float, gradients: float, wrong: int = 0) -> dict[str, Any]:
    times = dict(zip(WAYS, (planned, buffers, gradients)))
    return {
        way: {
            "operations": 32,
            "seconds": [9.0, seconds, 0.0],
            "announced": 0 if way == "planned" else 32,
            "bytes": 2_003_000,
            "wrong": wrong,
        }
        for way, seconds in times.items()
    }


def test_ratios_are_those_of_single_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = itertools.cycle([run_of(1.0, 1.1, 2.0), run_of(2.0, 2.0, 3.0), run_of(1.0, 1.3, 2.5)])
    monkeypatch.setattr(negotiation, "_run", lambda *_: next(runs))
    said: list[str] = []
    scale = Scale([4, 2], 1_000_000, Network(), 3, lambda *what: said.append(what[2]))
    *times, messages = negotiation.negotiation(scale, 1_000_000, 0.25)
    assert len(said) == 2 * 2 * 3 * 3
    assert said[0] == "resnet-50, 2 workers, 50 us one way"
    assert [table.name for table in times] == ["negotiation-resnet-50", "negotiation-bert-base"]
    row = times[0].rows[1]
    assert (row["hosts"], row["one_way_ms"], row["model_extra_ms"]) == (2, 1.0, 2.0)
    assert (row["planned_seconds"], row["buffers_seconds"]) == (1.0, 1.3)
    assert row["buffers_by_planned"] == pytest.approx(1.1)
    assert (row["buffers_least"], row["buffers_most"]) == (1.0, 1.3)
    assert row["gradients_extra_ms"] == pytest.approx(1000)
    assert [row["announcements_of_all"] for row in messages.rows[:6]] == [0, 64, 64, 0, 128, 128]
    assert messages.rows[0]["kilobytes_beside_gradients"] == pytest.approx(3)


def test_late_links_leave_a_gap_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object) -> dict[str, Any]:
        raise _LATE

    monkeypatch.setattr(negotiation, "_run", late)
    scale = Scale([2], 1_000_000, Network(), 1, lambda *_: None, quick=True, runs=1)
    (times,) = negotiation.negotiation(scale, 1_000_000, 0.25)  # and no table of messages
    assert times.rows[0]["planned_seconds"] is None
    assert times.rows[0]["buffers_by_planned"] is None
    assert times.notes[-1].startswith("void: resnet-50, 2 workers, 1 ms one way: ")


def test_wrong_averages_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    run = [{"way": way, **one} for way, one in run_of(1.0, 1.0, 1.0, wrong=5).items()]
    monkeypatch.setattr(negotiation, "run_in_lab", lambda *_, **__: run)
    scale = Scale([2], 1_000_000, Network(), 1, lambda *_: None)
    with pytest.raises(ClusterError, match="resnet-50, planned: 5 averages are wrong"):
        negotiation.negotiation(scale, 1_000_000, 0.25)


@pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")
def test_the_quick_form_measures_on_emulated_hosts(tmp_path: pathlib.Path) -> None:
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    words = ["negotiation", "--quick", "--quiet", "--out", str(tmp_path)]
    assert cli.handle(parser.parse_args(words)) == 0
    times = json.loads((tmp_path / "negotiation-resnet-50.json").read_text())
    assert times["provenance"]
    (row,) = times["rows"]
    assert row["hosts"] == 2
    if row["planned_seconds"] is None:  # other programs used the processors in all attempts
        assert times["notes"][-1].startswith("void")
        return
    assert all(row[f"{way}_seconds"] > 0.02 for way in WAYS)
    messages = json.loads((tmp_path / "negotiation-messages.json").read_text())["rows"]
    assert [row["announcements"] for row in messages] == [0, 32, 161]
    assert messages[0]["kilobytes_beside_gradients"] < messages[2]["kilobytes_beside_gradients"]


def test_sizes_and_hosts_have_defaults_of_their_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def measured(scale: Scale, size: int, compute: float) -> list[Any]:
        asked.append((tuple(scale.hosts), size, compute))
        return [Table("negotiation", "Title", [{"a": 1}])]

    monkeypatch.setattr(cli, "negotiation", measured)
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    for words in ([], ["--hosts", "3", "--size", "1M", "--compute", "0s", "--rate", "80mbit"]):
        given = ["negotiation", "--quiet", "--out", str(tmp_path), *words]
        assert cli.handle(parser.parse_args(given)) == 0
    assert asked == [(negotiation.HOSTS, 2_500_000, 0.1), ((3,), 1_000_000, 0.0)]
