"""The study: fits, tables and files; every experiment runs on few hosts."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

import warm
from herring.base.fit import fit_line
from herring.bench import models
from herring.errors import ConfigurationError
from herring_lab import competitors as peers
from herring_lab.report import Chart, Table, markdown, read, show, tick, write
from herring_lab.study import cli, experiments, training
from herring_lab.study.bench import Network, Point
from herring_lab.study.experiments import (
    DEFAULT_PEERS,
    Peer,
    Scale,
    _variants,
    ablations,
    allreduce,
    costs,
)

ROOT = os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter", "setpriv")))


def study(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, "-m", "herring.command.cli", "study", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_line_is_found_again() -> None:
    points = [(size, 20e-6 + size * 40e-9) for size in (0, 1000, 10**6, 10**7)]
    alpha, beta, burst = fit_line(points)
    assert alpha == pytest.approx(20e-6)
    assert beta == pytest.approx(40e-9)
    assert burst == pytest.approx(0, abs=1)


def test_messages_within_the_burst_do_not_bend_the_line() -> None:
    points = [(1, 20e-6), (60_000, 21e-6)]
    points += [(size, 20e-6 + 40e-9 * (size - 65_000)) for size in (262_144, 10**6, 10**7)]
    alpha, beta, burst = fit_line(points, short=256e3)
    assert (alpha, beta, burst) == pytest.approx((20e-6, 40e-9, 65_000))
    # A link is never found to be faster than itself, not even with a single long message.
    assert fit_line(points[:3], short=256e3)[1] == pytest.approx(40e-9 * 197_144 / 262_144)
    late = [(1, 20e-6), (10**6, 0.05), (10**7, 0.41)]  # long messages begin later
    assert fit_line(late, short=256e3)[2] == 0.0


def test_sizes_on_an_axis_have_units() -> None:
    sizes = [tick(x, "size (bytes)") for x in (1, 256, 4096, 4194304, 1 << 31, 1500000)]
    assert sizes == ["1", "256", "4 KiB", "4 MiB", "2 GiB", "1,500,000"]
    assert [tick(x, "hosts (number)") for x in (2, 0.5, 4194304)] == ["2", "0.5", "4,194,304"]


def test_servers_are_bought_by_time_and_paid_per_hour() -> None:
    table = costs(8, 1e9, 1e9, 0.5, 10.0, 1.0)
    first, last = table.rows[0], table.rows[-1]
    assert first["servers"] == 0
    assert first["step_seconds"] == pytest.approx(1.75)
    assert last["servers"] == 8
    assert last["faster_by"] == pytest.approx(1.75)
    assert last["price_by_none"] == pytest.approx(88 / 80 / 1.75)
    hidden = costs(8, 1e6, 1e9, 0.5, 10.0, 1.0)
    assert hidden.rows[-1]["faster_by"] == 1
    assert "gain nothing" in hidden.notes[0]


def test_a_terminal_gets_tables_and_a_file_markdown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"kind": "a [b]", "model_seconds": 0.5}, {"kind": "c", "model_seconds": None}]
    table = Table("name", "A title", rows, None, ["a note"])
    show([table])
    assert capsys.readouterr().out == markdown(table) + "\n"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show([table])
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    shown = [line.split() for line in text.splitlines() if line.strip()]
    assert shown[:2] == [["A", "title"], ["kind", "model", "seconds"]], text
    assert shown[3:] == [["a", "[b]", "0.5"], ["c", "-"], ["-", "a", "note"]], text
    assert "|" not in text and "##" not in text


def test_files(tmp_path: pathlib.Path) -> None:
    rows = [{"kind": k, "hosts": h, "seconds": 0.5 * h} for k in ("a", "b") for h in (2, 4)]
    chart = Chart("hosts", ["seconds"], "number of hosts", "time (s)", by="kind")
    table = Table("name", "A title", rows, chart, ["a note"])
    text = markdown(table)
    assert "| kind | hosts | seconds |" in text
    assert "| b | 4 | 2 |" in text
    assert text.endswith("- a note\n")
    files = write(table, tmp_path / "new")
    assert json.loads(files[1].read_text())["rows"] == rows
    assert read(files[1]) == table
    if len(files) == 3:
        assert files[2].name == "name.svg"
    else:
        with pytest.raises(ImportError):
            import matplotlib  # noqa: F401


def test_rows_may_lack_a_model(tmp_path: pathlib.Path) -> None:
    rows = [{"hosts": h, "seconds": 1.0 * h, "model_seconds": h if h < 4 else None} for h in (2, 4)]
    chart = Chart("hosts", ["seconds", "model_seconds"], "number of hosts", "time (s)")
    table = Table("name", "A title", rows, chart)
    assert "| 4 | 4 | - |" in markdown(table)
    assert json.loads(write(table, tmp_path)[1].read_text())["rows"][1]["model_seconds"] is None


def test_peers_that_are_missing_are_skipped_with_a_line(monkeypatch) -> None:
    monkeypatch.setattr(cli, "missing", lambda name: "install it" if name == "mpich" else "")
    found, skipped = cli._peers("gloo,mpich,mpich:butterfly,openmpi:ring")
    assert found == [Peer("gloo"), Peer("openmpi", "ring")]
    assert skipped == ["mpich: install it"]
    assert cli._peers("") == ([], [])


def test_peers_have_the_models_of_what_they_do() -> None:
    assert Peer("gloo").model == "ring"
    assert Peer("mpich").model == "butterfly"
    assert Peer("openmpi", "doubling").model == "doubling"
    assert Peer("openmpi", "linear").model is None
    for text in DEFAULT_PEERS:
        library, _, algorithm = text.partition(":")
        assert library in peers.PEERS
        assert not algorithm or algorithm in peers.ALGORITHMS[library]
        assert Peer(library, algorithm or None).model in models.ALGORITHMS


def test_variants_keep_the_capacity_and_the_shares_that_notes_promise() -> None:
    variants = {(what, name): (net, at) for what, name, net, at in _variants(8, 1000, Network(8e6))}
    spine, flows = variants["paths, one slow", "4 flows"]
    whole, _ = variants["paths, equal, as much in all", "4 flows"]
    assert flows.settings == {"HERRING_FLOWS": "4"}
    assert max(spine.paths) == 8e6
    assert sum(spine.paths) == pytest.approx(sum(whole.paths)) == pytest.approx(3.1 * 8e6)
    slow, shares = variants["slow card", "shares by rate"]
    assert slow.rates == {15: 4e6}
    assert shares.settings["HERRING_SERVER_WEIGHTS"] == "1,1,1,1,1,1,1,0.5"


@pytest.mark.parametrize("torch", [True, False])
def test_without_torch_ablations_skip_bfloat16_with_a_note(torch: bool, monkeypatch) -> None:
    def measured(_network: Network, _point: Point, _iterations: int) -> dict[str, float]:
        names = ("p50_seconds", "max_seconds", "server_bytes", "drops", "retransmits")
        return dict.fromkeys(names, 1.0)

    monkeypatch.setattr(experiments, "missing", lambda _: "" if torch else "torch: get it")
    monkeypatch.setattr(experiments, "measure", measured)
    table = ablations(Scale([2], 1000, Network(), 1, lambda *_: None))
    assert [row["variant"] for row in table.rows].count("bfloat16") == torch
    assert ("skipped: wire dtype bfloat16: torch: get it" in table.notes) != torch
    assert len(table.rows) == 17 + torch


def test_models_get_the_alpha_and_beta_that_were_measured(monkeypatch) -> None:
    times = itertools.count(1)

    def measured(_network: Network, point: Point, _iterations: int) -> dict[str, float]:
        seconds = float(next(times)) if point.algorithm == "ring" else 2.0
        return {"p50_seconds": seconds, "max_seconds": seconds + 1, "retransmits": seconds}

    def messages(_network: Network, sizes: Sequence[int]) -> list[tuple[int, float]]:
        return [(size, 0.001 + size * 50e-9) for size in sizes]

    monkeypatch.setattr(experiments, "measure", measured)
    monkeypatch.setattr(experiments, "ping_pong", messages)
    said: list[str] = []
    chosen = [Peer("mpich", "ring")]
    scale = Scale([4], 10**6, Network(200e6), 1, lambda *what: said.append(what[2]), chosen)
    table = allreduce(scale)
    assert len(said) == 1 + 3 * 7
    assert said[:2] == ["ping-pong between two hosts", "herring, 4 hosts, 1 MB"]
    rows = {row["algorithm"]: row for row in table.rows}
    ring, other = rows["ring"], rows["mpich ring"]
    assert [ring["seconds"], other["seconds"]] == [3, 4]  # 1, 3, 5 and 2, 4, 6, in turns
    assert (ring["slowest_seconds"], ring["retransmits"]) == (6, 5)
    assert ring["herring_is_faster_by"] == 1.5
    assert (ring["faster_by_least"], ring["faster_by_most"]) == (0.5, 2.5)
    assert ring["model_seconds"] == pytest.approx(0.06)  # links of 25 MB/s, without latency
    # 50 ns per byte and 1 ms per message, six of which follow each other in a ring of four.
    assert ring["model_fitted_seconds"] == pytest.approx(1.5 * 0.05 + 6 * 0.001, rel=1e-2)
    assert ring["measured_by_model_fitted"] == pytest.approx(3 / ring["model_fitted_seconds"])
    assert "alpha 1000.0 us and 1/beta 20 MB/s" in table.notes[0]


def quick_study(folder: pathlib.Path, *names: str) -> None:
    """Runs ``herring study --quick`` in this process."""
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    cli.handle(parser.parse_args([*names, "--quick", "--quiet", "--out", str(folder)]))


def test_experiments_without_their_library_are_skipped(tmp_path, monkeypatch, capsys) -> None:
    def measured(_scale: Scale) -> Table:
        return Table("cost-check", "Title", [{"a": 1}], notes=["its own note"])

    monkeypatch.setattr(training.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setitem(cli._MEASURED, "cost-check", measured)
    quick_study(tmp_path, "training", "cost-check", "cost")
    output = capsys.readouterr().out
    assert "training: skipped: training needs torch: pip install" in output
    notes = json.loads((tmp_path / "cost-check.json").read_text())["notes"]
    assert "not measurements" in notes[0]
    assert notes[1:] == ["its own note"]
    assert "not measurements" not in (tmp_path / "cost.md").read_text()  # models need no time
    with pytest.raises(ConfigurationError, match="nothing was measured: training needs torch"):
        quick_study(tmp_path, "training")


def test_points_are_named_in_words() -> None:
    point = Point(3, 1, 100_000, dtype="bfloat16", settings={"HERRING_FLOWS": "4"})
    assert str(point) == (
        "allreduce of 100,000 bytes of bfloat16 by herring with 3 workers and 1 server "
        "(HERRING_FLOWS=4)"
    )
    assert str(Point(2, 0, 4, "mpich", "ring")) == (
        "allreduce of 4 bytes of float32 by mpich (ring) with 2 workers and 0 servers"
    )


def test_examples_of_the_help_show_a_gain_and_the_default_list() -> None:
    assert "(line-rate, allreduce, ablations, training, cost-check)" in cli.HELP
    example = next(line for line in cli.HELP.splitlines() if "study cost --nodes" in line)
    words = [*example.rstrip("\\ ").split()[2:], "--compute", "0.2"]
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    options = parser.parse_args(words)
    assert cli._cost(options, float(options.size), cli._network(options)).notes == []


def check_algorithms(out: pathlib.Path, said: str) -> None:
    rows = json.loads(next(out.glob("allreduce-*.json")).read_text())["rows"]
    names = {"herring", "ring", "butterfly", "doubling", "tree", "server", "gloo"}
    if peers.missing("nccl"):
        assert f"skipped: nccl: {peers.missing('nccl')}" in said
    else:
        names.add("nccl")
    assert {(row["algorithm"], row["hosts"]) for row in rows} == {
        (name, hosts) for name in names for hosts in (2, 3)
    }
    assert all(row["seconds"] > 0 for row in rows)


def check_ablations(out: pathlib.Path, said: str) -> None:
    assert len(json.loads((out / "ablations.json").read_text())["rows"]) == 18


def check_training(out: pathlib.Path, said: str) -> None:
    strategies = 3 if peers.missing("horovod") else 4
    assert len(json.loads((out / "training.json").read_text())["rows"]) == 2 * strategies


@pytest.mark.skipif(not ROOT, reason="needs root, iproute2 and util-linux")
@pytest.mark.parametrize(
    ("what", "check"),
    [
        pytest.param(["line-rate", "allreduce", "cost-check"], check_algorithms, id="algorithms"),
        pytest.param(["ablations"], check_ablations, id="ablations"),
        pytest.param(["training"], check_training, id="training"),
    ],
)
def test_the_quick_study_runs(
    tmp_path: pathlib.Path, what: list[str], check: Callable[[pathlib.Path, str], None]
) -> None:
    pytest.importorskip("torch")
    # Acts as if no MPI were installed, so MPI is skipped with a line; test_lab_mpi runs it.
    done = study(*what, "--quick", "--out", str(tmp_path), "--peers", "gloo,nccl")
    assert done.returncode == 0, done.stderr[-2000:]
    check(tmp_path, done.stderr)
    assert "about" in done.stderr
