"""The study of long paths: what it measures, what it leaves out, and how it shows both."""

from __future__ import annotations

import itertools

import pytest

from herring_lab.emulate import LateLinksError, LinkReport
from herring_lab.report import markdown
from herring_lab.study import cases
from herring_lab.study import long_paths as module
from herring_lab.study.bench import Network, Point
from herring_lab.study.experiments import Scale

_LATE = LateLinksError(LinkReport(1.0, 0.9, 100, 50, 2e-4, 1e-3, 9e-2, 1e-3, 0, 0))


@pytest.fixture
def measured(monkeypatch) -> list[tuple[Network, Point]]:
    seen: list[tuple[Network, Point]] = []

    def measure(network: Network, point: Point, iterations: int, warmup: int) -> dict[str, float]:
        seen.append((network, point))
        if network.delay == 5e-3 and point.library == "gloo":
            raise _LATE
        if network.delay == 5e-3 and point.settings.get("HERRING_CREDIT") == "8KiB":
            if len([at for at in seen if at == seen[-1]]) == 1:
                raise _LATE
            return {"p50_seconds": 4.0}
        return {"p50_seconds": float(len(seen))}

    monkeypatch.setattr(cases, "measure", measure)
    monkeypatch.setattr(module, "missing", lambda library: "")
    return seen


def test_every_path_and_credit_is_measured_and_late_links_give_no_figure(measured) -> None:
    said: list[tuple[int, int]] = []
    scale = Scale([2], 1, Network(200e6), 20, lambda done, total, _: said.append((done, total)))
    table = module.long_paths(scale, 12_500_000)
    assert [(row["one_way_ms"], row["loss_percent"]) for row in table.rows] == [
        (pytest.approx(1e3 * delay), pytest.approx(100 * loss)) for delay, loss in module.SETTINGS
    ]
    assert said == [(number, len(said)) for number in range(len(said))]
    assert all(network.strict for network, _ in measured)
    assert {(at.workers, at.servers) for _, at in measured if at.library == "herring"} == {(4, 4)}
    assert {(at.workers, at.servers) for _, at in measured if at.library == "gloo"} == {(4, 0)}
    last = table.rows[-1]
    assert last["model_limit"] == pytest.approx(0.5)
    assert last["gloo"] is None, "three late attempts gave a figure"
    assert last["fixed_8KiB"] == last["fastest_fixed"] == 4.0
    assert last["worst_run"] > last["self_controlled"]
    void = [note for note in table.notes if note.startswith("void")]
    assert len(void) == 1
    assert "5 ms" in void[0]
    assert "gloo" in void[0]
    assert "| -" in markdown(table)


def test_a_quick_one_is_quick(measured, monkeypatch) -> None:
    monkeypatch.setattr(module, "missing", lambda library: "needs torch")
    scale = Scale([2], 1, Network(200e6), 2, lambda *_: None, quick=True, runs=1)
    table = module.long_paths(scale, 500_000)
    assert len(measured) == 2
    assert "gloo" not in table.rows[0]
    assert "skipped: gloo: needs torch" in table.notes
    assert list(itertools.chain(table.chart.y)) == [
        "self_controlled",
        "fastest_fixed",
        "model_limit",
    ]
