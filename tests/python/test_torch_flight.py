"""Tests that PyTorch's own analyzer reads what `herring flight --torch` writes."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm
from flights import Flight, examples, missing_rank
from herring.flight import torch_format
from herring.flight.analysis import analyse

pytest.importorskip("torch")
builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
from torch.distributed.flight_recorder.components.config_manager import JobConfig  # noqa: E402
from torch.distributed.flight_recorder.components.loader import read_dir  # noqa: E402


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="Flight Recorder")


def analyzed(flight: Flight, folder: Path, *options: str) -> Any:
    """Returns the collectives that PyTorch's analyzer finds."""
    record = flight.record()
    torch_format.write(record, analyse(record), folder)
    arguments: argparse.Namespace = JobConfig().parse_args([str(folder), *options])
    details, version = read_dir(arguments)
    return builder.build_db(details, arguments, version).collectives


def test_a_good_job_has_no_mismatch(tmp_path: Path) -> None:
    flight = examples()["good"]
    found = analyzed(flight, tmp_path)
    assert len(found) == 8
    assert all(one.pass_check and not one.missing_ranks for one in found)


def test_a_missing_rank_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = analyzed(missing_rank(), tmp_path)
    assert [one.missing_ranks for one in found] == [None] * 7 + [{3}]
    assert "Not all ranks joining collective, sequence number: 8" in caplog.text


def test_a_wrong_collective_is_a_mismatch_of_types(tmp_path: Path) -> None:
    found = analyzed(examples()["wrong"], tmp_path)
    assert [one.pass_check for one in found] == [True] * 4 + [False]
    (rank,) = found[-1].mismatch_collectives
    assert rank == 3
    assert "COLLECTIVE_TYPE_MISMATCH" in str(found[-1].mismatch_collectives[3].type_of_mismatch)


def test_a_wrong_size_is_a_mismatch_of_sizes(tmp_path: Path) -> None:
    found = analyzed(examples()["sizes"], tmp_path)
    (rank,) = found[-1].mismatch_collectives
    assert rank == 2
    assert "SIZE_OR_SYNTAX_MISMATCH" in str(found[-1].mismatch_collectives[2].type_of_mismatch)


def test_ranks_that_have_dropped_old_entries_are_aligned(tmp_path: Path) -> None:
    flight = missing_rank()
    flight.drop(0, before=3.0)
    flight.drop(3, before=5.0)
    found = analyzed(flight, tmp_path)
    assert [one.missing_ranks for one in found][-1] == {3}
    assert all(not one.missing_ranks for one in found[:-1])


def test_a_rank_without_a_record_is_not_called_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flight = missing_rank()
    flight.lose(3)
    found = analyzed(flight, tmp_path, "--allow-incomplete-ranks")
    assert all(not one.missing_ranks for one in found)
    assert "we missed FR dumps from ranks ({3})" in caplog.text


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    flight = Flight()
    flight.groups = [{"group": 1, "size": 2, "ranks": [1, 3]}]
    flight.steps(2)
    flight.call("pair", 4.0, ranks=(1, 3), group=1)
    flight.call("pair", 5.0, number=1, ranks=(1,), group=1, ended=False)
    found = analyzed(flight, tmp_path)
    assert [(one.expected_ranks, one.missing_ranks) for one in found][-1] == ({1, 3}, {3})


def test_the_program_of_a_rank_is_a_frame(tmp_path: Path) -> None:
    record = missing_rank().record()
    dumps = torch_format.convert(record, analyse(record))
    assert dumps[3]["entries"][-1]["frames"] == [
        {"name": "load", "filename": "train.py", "line": 40}
    ]


def test_the_command_of_torch_reads_the_files(tmp_path: Path) -> None:
    path = tmp_path / "flight.json"
    path.write_text(json.dumps(missing_rank().document()), encoding="utf-8")
    folder = tmp_path / "traces"
    command = [sys.executable, "-m", "herring.command.cli", "flight", str(path)]
    warm.run([*command, "--torch", str(folder)], check=True, capture_output=True)
    done = warm.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=600,
    )
    assert "missing ranks: {3}" in done.stdout
