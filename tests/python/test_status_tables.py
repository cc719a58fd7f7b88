"""Tables of `herring status` and its view that follows a job, on terminals of all widths."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

import statuses
from herring.command import cli
from herring.observe.live import view
from herring.observe.schema import parse


def test_a_view_fits_its_terminal() -> None:
    status = parse(json.dumps(statuses.healthy(200)), "the test")
    for height in (24, 40):
        console = Console(width=90, height=height, record=True, file=io.StringIO())
        console.print(view(status, [0.1, 0.2, 0.1], console))
        shown = console.export_text()
        assert len(shown.splitlines()) <= height, shown
        assert "ranks more" in shown and "▁█▁" in shown
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    plain = Console(file=file, width=50, record=True)
    plain.print(view(status, [0.1, 0.2], plain))
    assert plain.export_text().isascii()


@pytest.mark.parametrize("width", [40, 60, 70, 80, 100, 160])
def test_a_narrow_terminal_shows_fewer_columns_and_cuts_only_long_texts(width: int) -> None:
    example = statuses.late()
    example["ranks"][5]["host"] = "node03.rack7.cluster.example.org"
    status = parse(json.dumps(example), "the test")
    console = Console(width=width, height=60, record=True, file=io.StringIO())
    console.print(view(status, [0.1, 0.2], console))
    shown = console.export_text().splitlines()
    assert max(map(len, shown)) <= width
    bars = [line for line in shown if "░" in line]
    assert len(bars) == 6 and all("%" in line and line.endswith("ms") for line in bars)
    first = next(index for index, line in enumerate(shown) if line.startswith("rank  "))
    heads = shown[first].split()
    assert heads[:2] == ["rank", "host"] and {"state", "late"} <= {*heads}
    assert "where" in heads or width < 60
    late = shown[first + 1].split()
    assert late[0] == "5" and late[1].startswith("node03") and late[2] == "computing"
    cut = [text for line in shown[first:] for text in line.split() if "…" in text]
    assert all(text == late[1] for text in cut), cut


def test_tables_say_which_columns_a_terminal_is_too_narrow_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "status.json"
    saved.write_text(json.dumps(statuses.late()), encoding="utf-8")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["status", str(saved), "--all"]) == 0
    narrow = capsys.readouterr().out
    assert re.search(r"A wider terminal also shows .*round trip", narrow), narrow
    assert "…" not in narrow
    monkeypatch.delenv("FORCE_COLOR")
    assert cli.main(["status", str(saved), "--all"]) == 0
    everything = capsys.readouterr().out
    assert "round trip" in everything and "A wider terminal" not in everything
