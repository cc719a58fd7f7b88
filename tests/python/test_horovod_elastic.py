"""hvd.elastic in real jobs: unchanged programs of Horovod's whose workers die and come."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import expect_success, program, run_job

ELASTIC = ["--elastic", "--horovod"]


@pytest.mark.parametrize(
    ("layout", "victim", "options"),
    [
        (["-n", "3", "--nodes", "3", "--servers", "1"], 0, ["own"]),
        (["-n", "2"], 1, ["inside"]),
    ],
    ids=["first-rank-own-compressor", "down-to-one"],
)
def test_workers_die_and_come_back(
    layout: list[str], victim: int, options: list[str], tmp_path: Path
) -> None:
    script = program("horovod_elastic", str(victim), str(tmp_path / "died"), *options)
    output = expect_success(run_job([*layout, *ELASTIC], script))
    size = int(layout[1])
    ends = re.findall(r"trained: generation (\d+), resets \[(.*)\]", output)
    assert len(ends) == size and len({generation for generation, _ in ends}) == 1, output
    (came,) = (resets for _, resets in ends if not resets)  # it began with the last generation
    ends.remove((ends[0][0], came))
    for generation, resets in ends:
        sizes = [int(one) for one in resets.split(", ")]
        assert len(sizes) == int(generation) - 1 and sizes[-1] == size, output


def test_several_wrappers_enter_each_generation(tmp_path: Path) -> None:
    script = program("horovod_elastic_several", str(tmp_path / "died"))
    output = expect_success(run_job(["-n", "2", "--nodes", "2", *ELASTIC], script))
    assert output.count("trained both") == 2, output


def test_an_error_of_the_program_itself_begins_anew_from_the_last_commit() -> None:
    script = program("horovod_elastic_raises")
    output = expect_success(run_job(["-n", "2", *ELASTIC], script))
    assert output.count("went on") == 2, output
    assert "the program itself raised HorovodInternalError: my own" in output


def test_ranks_that_disagree_do_not_begin_anew() -> None:
    script = program("horovod_elastic_raises", "mismatch")
    job = run_job(["-n", "2", *ELASTIC, "--restarts", "0"], script)
    assert job.returncode == 1, job.stdout
    assert "generation 2" not in job.stdout, job.stdout
    assert "ranks disagree about 'horovod.allreduce.different'" in job.stdout


def test_a_program_without_elastic_run_averages_and_begins_anew(tmp_path: Path) -> None:
    script = program("horovod_elastic_without", str(tmp_path / "died"))
    output = expect_success(run_job(["-n", "2", *ELASTIC, "--min-np", "2"], script))
    assert output.count("averaged") == 2, output
    assert output.count("starting another one in its place") == 2, output


def test_a_worker_that_comes_too_late_does_not_begin_anew_alone(tmp_path: Path) -> None:
    script = program("horovod_elastic_without", str(tmp_path / "died"), "late")
    output = expect_success(run_job(["-n", "2", *ELASTIC], script))
    assert output.count("averaged") == 1, output
