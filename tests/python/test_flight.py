"""Tests `herring flight`: its report, its JSON, its traces and its errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flights import Flight, example_text, examples, missing_rank
from herring.command import cli
from herring.errors import ConfigurationError
from herring.flight import record, torch_format, trace
from herring.flight.analysis import analyse
from herring.flight.findings import RANKING


def written(folder: Path, flight: Flight) -> str:
    path = folder / "flight.json"
    path.write_text(json.dumps(flight.document()), encoding="utf-8")
    return str(path)


def test_the_report_begins_with_the_verdict_and_compares_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["flight", written(tmp_path, missing_rank())]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "rank 3 (host1) never called 'resnet' round 7, for which ranks 0-2 waited 12 s; "
        "its program was in train.py:40 in load (data loader)"
    )
    assert "last operation that all ranks completed: 'resnet' round 6 (13 s before)" in lines
    assert "first operation in which ranks differ: 'resnet' round 7" in lines
    row = next(line for line in lines if line.startswith("> "))
    assert row.split("  ") == [
        "> 'resnet' round 7",
        "failed: timeout after 12 s",
        "never called",
    ]
    assert "3 more operations are in the record (--all shows them)" in lines


def test_all_operations_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flight", "--all", written(tmp_path, missing_rank())]) == 0
    shown = capsys.readouterr().out
    assert all(f"'resnet' round {number} " in shown for number in range(8))
    assert "more operations" not in shown


def test_the_operations_of_one_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flight", "--rank", "3", written(tmp_path, missing_rank())]) == 0
    shown = capsys.readouterr().out
    assert "rank 3 (host1): its program was in train.py:40 in load (data loader)" in shown
    assert "'resnet' round 6  4.1 kB  gave its data after 97 ms" in shown
    assert "'resnet' round 7" in shown.splitlines()[-1]
    assert shown.splitlines()[-1].endswith("never called")


def test_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["flight", "--json", written(tmp_path, missing_rank())]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "herring-flight-analysis-1"
    assert document["findings"][0]["kind"] == "missing"
    assert document["findings"][0]["ranks"] == [3]
    assert document["first_different"] == document["findings"][0]["operation"]
    assert document["operations"][-1]["ranks"] == {
        **dict.fromkeys("012", "failed: timeout"),
        "3": "never called",
    }


def test_a_chrome_trace(tmp_path: Path) -> None:
    flight = missing_rank()
    output = tmp_path / "trace.json"
    assert cli.main(["flight", written(tmp_path, flight), "--trace", str(output)]) == 0
    events = json.loads(output.read_text(encoding="utf-8"))["traceEvents"]
    assert events == trace.as_trace(flight.record())["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"rank 0 (host0)", "rank 1 (host0)", "rank 2 (host1)", "rank 3 (host1)",
                     "server 0 (server0)", "server 1 (server1)"}  # fmt: skip
    begun = [one for one in events if one["ph"] == "b"]
    assert len(begun) == sum(one["ph"] == "e" for one in events)
    assert any(one["name"] == "'resnet' round 7 (timeout)" for one in begun)
    assert any(one["name"] == "'resnet' round 7 buffer 1 (timeout)" for one in begun)


def test_files_for_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flight = missing_rank()
    flight.lose(2)
    folder = tmp_path / "made" / "traces"
    assert cli.main(["flight", written(tmp_path, flight), "--torch", str(folder)]) == 0
    assert sorted(path.name for path in folder.iterdir()) == [
        f"nccl_trace_rank_{rank}" for rank in (0, 1, 3)
    ]
    said = capsys.readouterr().out
    assert "no record came from rank 2: give torchfrtrace --allow-incomplete-ranks" in said
    before = (folder / "nccl_trace_rank_0").stat().st_mtime_ns
    (folder / "nccl_trace_rank_2").touch()
    assert cli.main(["flight", written(tmp_path, flight), "--torch", str(folder)]) == 2
    said = capsys.readouterr().err
    assert f"{folder} has nccl_trace_rank_2, of a rank that has no record here" in said
    assert (folder / "nccl_trace_rank_0").stat().st_mtime_ns == before


def test_a_rank_that_has_dropped_nothing_sets_no_limit_for_the_others() -> None:
    flight = Flight(size=2)
    flight.call("a", 1.0, ranks=(0,), ended=False)
    flight.call("b", 2.0)
    dumps = torch_format.convert(flight.record(), analyse(flight.record()))
    assert [dumps[rank]["entries"][0]["record_id"] for rank in (0, 1)] == [0, 0]


def test_ranks_that_wait_for_each_other_called_at_the_same_place() -> None:
    read = examples()["wrong"].record()
    dumps = torch_format.convert(read, analyse(read))
    last = [dumps[rank]["entries"][-1] for rank in range(4)]
    assert len({one["collective_seq_id"] for one in last}) == 1
    assert [one["profiling_name"] for one in last] == [*["nccl:all_reduce"] * 3, "nccl:broadcast"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not a flight record: not JSON"),
        ("[]", "its schema is None, expected 'herring-flight-1'"),
        ('{"schema": "herring-flight-9"}', "its schema is 'herring-flight-9'"),
        (
            '{"schema": "herring-flight-1", "processes": {}}',
            "'processes' is {}; expected a list of objects",
        ),
        (
            '{"schema": "herring-flight-1", "processes": [{"kind": "proxy"}]}',
            "the kind of a process is 'proxy'; allowed are 'rank' and 'server'",
        ),
        (
            '{"schema": "herring-flight-1", "processes": [{"kind": "rank", "entries": '
            '[{"kind": "round", "id": "x"}]}]}',
            "'id' is 'x'; expected an integer",
        ),
        ('{"schema": "herring-flight-1", "time": true}', "'time' is True; expected a number"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    path = tmp_path / "flight.json"
    path.write_text(content, encoding="utf-8")
    assert cli.main(["flight", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("herring flight: ")
    assert said in error
    assert error.count("\n") == 1


def test_wrong_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, missing_rank())
    assert cli.main(["flight", path, "--rank", "4"]) == 2
    assert "--rank 4 is not a rank of this job; allowed are 0 to 3" in capsys.readouterr().err
    assert cli.main(["flight", path, "--trace", str(tmp_path / "no" / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err
    if os.path.exists("/dev/full"):
        assert cli.main(["flight", path, "--trace", "/dev/full"]) == 2
        assert "cannot write /dev/full: No space left" in capsys.readouterr().err
    assert cli.main(["flight", str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_absent_values_are_defaults() -> None:
    read = record.parse({"schema": "herring-flight-1", "size": 2, "processes": None})
    assert read.ranks == {}
    with pytest.raises(ConfigurationError, match=r"'size' is 1\.5; expected an integer"):
        record.parse({"schema": "herring-flight-1", "size": 1.5})


def test_the_page_shows_what_the_command_prints() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "flight-recorder.md"
    mark = "<!-- printed by: python tests/support/flights.py -->\n"
    quoted = page.read_text(encoding="utf-8").partition(f"{mark}```\n")[2].partition("\n```\n")[0]
    assert quoted == example_text()


def test_the_page_explains_every_kind_of_finding() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "flight-recorder.md"
    text = page.read_text(encoding="utf-8")
    assert all(f"`{kind}`" in text for kind in RANKING)
