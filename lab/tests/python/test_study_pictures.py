"""Pictures of the study are readable for everybody, small, and redrawn from their numbers."""

from __future__ import annotations

import pathlib
import re

import pytest

from herring.errors import ConfigurationError
from herring_lab import report
from herring_lab.emulate import LateLinksError, LinkReport
from herring_lab.report import Chart, Table
from herring_lab.study import cases, cli, comparisons
from herring_lab.study.bench import Network, Point
from herring_lab.study.experiments import Scale, costs
from herring_lab.study.hyperplane import MODES, Regression, hyperplane_tables

pytest.importorskip("matplotlib")

_LIMIT = 40_000  # bytes; pictures are stored with the documentation
_DARK = "#0d1117"


def texts(file: pathlib.Path) -> list[str]:
    """Returns the texts of a picture."""
    found = re.findall(r"<text [^>]*>([^<]*)</text>", file.read_text())
    return [text.replace("&#x27;", "'") for text in found]


def dashed(file: pathlib.Path) -> int:
    return len(re.findall(r"<path [^>]*stroke-dasharray", file.read_text()))


@pytest.fixture
def measured(monkeypatch) -> list[tuple[Network, Point]]:
    """Replaces measuring: returns twice the limit; Gloo's links are late at 5 ms."""
    seen: list[tuple[Network, Point]] = []

    def measure(network: Network, point: Point, iterations: int, warmup: int) -> dict[str, float]:
        seen.append((network, point))
        if network.delay == 5e-3 and point.library == "gloo":
            raise LateLinksError(LinkReport(1.0, 0.9, 100, 50, 2e-4, 1e-3, 9e-2, 1e-3, 0, 0))
        return {"p50_seconds": 2 * point.size / network.bandwidth}

    monkeypatch.setattr(cases, "measure", measure)
    monkeypatch.setattr(comparisons, "missing", lambda library: "")
    return seen


def scale(**options) -> Scale:
    said = options.pop("said", [])
    return Scale(
        [2, 4, 16], 1, Network(100e6), 20, lambda *what: said.append(what), runs=2, **options
    )


def test_hosts_are_whole_and_models_are_said_to_be_dashed(measured, tmp_path) -> None:
    said: list[tuple[int, int, str]] = []
    table = comparisons.over_hosts(scale(said=said), 12_500_000)
    assert [(done, total) for done, total, _ in said] == [(i, 18) for i in range(18)]
    assert said[0][2] == "2 workers, herring"
    assert {(at.workers, at.servers) for _, at in measured if at.algorithm is None} >= {
        (4, 4),
        (16, 16),
        (16, 0),
    }
    assert not any(network.strict for network, _ in measured)
    row = table.rows[-1]
    assert row["model_limit"] == pytest.approx(1)
    assert row["model_ring"] == pytest.approx(15 / 8)
    assert row["herring"] == row["gloo"] == pytest.approx(2)
    (picture,) = report.draw(table, tmp_path)
    found = texts(picture)
    assert found[:3] == ["2", "4", "16"]
    assert "number of workers, one per host" in found
    assert "time of an all-reduce (s)" in found
    assert "dashed lines are models" in found
    assert dashed(picture) == 4  # two curves, which are also in the legend
    assert {"Herring", "ring (Herring's)", "ring (Gloo's)", "limit M/B"} <= set(found)
    assert picture.stat().st_size < _LIMIT


def test_delays_and_losses_are_on_strict_links_and_late_ones_are_void(measured, tmp_path) -> None:
    delays = comparisons.over_delay(scale(), 12_500_000)
    assert {network.delay for network, _ in measured} == set(comparisons.DELAYS)
    assert all(network.strict and network.loss == 0 for network, _ in measured)
    assert {at.workers for _, at in measured} == {4}
    assert delays.rows[-1]["gloo"] is None
    assert delays.rows[-1]["gloo_by_herring"] is None
    assert any(note.startswith("void: 5 ms one way, gloo") for note in delays.notes)
    (picture,) = report.draw(delays, tmp_path)
    assert texts(picture)[:6] == ["0.05", "0.2", "0.5", "1", "2", "5"]
    measured.clear()
    losses = comparisons.over_loss(scale(), 12_500_000)
    assert {network.loss for network, _ in measured} == set(comparisons.LOSSES)
    assert {network.delay for network, _ in measured} == {500e-6}
    (picture,) = report.draw(losses, tmp_path)
    assert texts(picture)[:6] == ["0", "0.01", "0.03", "0.1", "0.3", "1"]
    assert "packets lost at random (%)" in texts(picture)


def test_without_gloo_there_is_no_curve_of_it(measured, monkeypatch) -> None:
    monkeypatch.setattr(comparisons, "missing", lambda library: "needs torch")
    table = comparisons.over_hosts(scale(quick=True), 1_000_000)
    assert "gloo" not in table.chart.y
    assert "skipped: gloo: needs torch" in table.notes


def all_charts(measured) -> list[Table]:
    curve = [(1, 0.5, 9.0), (2, 1.0, 5.0)]
    run = {"seconds": 1.0, "loss": 5.0, "contributions": 8, "curve": curve, "least": 4.5}
    runs = {(delay, mode): dict(run) for delay in (200, 300) for mode in MODES}
    names = ("ring", "tree", "server", "gloo", "mpich", "openmpi", "nccl", "butterfly", "herring")
    rows = [
        {"algorithm": name, "hosts": hosts, "seconds": 1.0 * hosts, "model_seconds": 0.9 * hosts}
        for name in names
        for hosts in (2, 4, 8, 16)
    ]
    chart = Chart("hosts", ["seconds", "model_seconds"], "number", "time (s)", by="algorithm")
    return [
        *(study(scale(), 10**6) for study in comparisons.COMPARISONS.values()),
        costs(64, 1e9, 1e9, 0.5, 10.0, 1.0),
        *hyperplane_tables(runs, Regression()),
        Table("many", "Many curves", rows, chart),
    ]


def test_every_picture_is_small_and_is_drawn_again_alike(measured, tmp_path, capsys) -> None:
    for table in all_charts(measured):
        files = report.write(table, tmp_path)
        first = files[2].read_text()
        assert len(first) < _LIMIT, table.name
        assert "<text" in first, "text became paths"
        assert table.chart.x_name in texts(files[2])
        assert table.chart.y_name in texts(files[2])
        assert ("dashed lines are models" in texts(files[2])) == (dashed(files[2]) > 0)
        again = tmp_path / "again"
        assert cli._draw([str(files[1])], str(again)) == 0
        assert (again / files[2].name).read_text() == first
        assert capsys.readouterr().out.strip() == str(again / files[2].name)


def test_what_is_no_table_is_not_drawn(tmp_path) -> None:
    wrong = tmp_path / "wrong.json"
    for content in ("{", "[]", "{}", '{"chart": {"z": 1}}'):
        wrong.write_text(content)
        with pytest.raises(ConfigurationError, match=r"wrong\.json is not a table"):
            cli._draw([str(wrong)], str(tmp_path))
    with pytest.raises(ConfigurationError, match="No such file"):
        cli._draw([str(tmp_path / "none.json")], str(tmp_path))


def test_tables_without_a_picture_are_skipped(measured, tmp_path, capsys) -> None:
    flat = report.write(Table("flat", "No chart", [{"a": 1}]), tmp_path)[1]
    drawn = report.write(comparisons.over_hosts(scale(), 10**6), tmp_path)[1]
    again = tmp_path / "again"
    assert cli._draw([str(flat), str(drawn)], str(again)) == 0
    shown = capsys.readouterr()
    assert f"skipped {flat}: no picture belongs to it" in shown.err
    assert shown.out.strip() == str(again / "over-hosts.svg")
    with pytest.raises(ConfigurationError, match=r"no picture belongs to .*flat\.json"):
        cli._draw([str(flat)], str(again))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", _DARK])
def test_colours_show_on_light_and_dark_pages(page: str) -> None:
    """WCAG 2.1: graphics need a contrast of 3; text here more than that on either page."""
    for colour in report.COLOURS:
        assert _contrast(colour, page) >= 2.99, colour
    assert _contrast(report.INK, page) >= 4
