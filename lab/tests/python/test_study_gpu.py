"""``herring study gpu``: its tables, and its workers on a stand-in for CUDA's driver."""

from __future__ import annotations

import json
import pathlib

import pytest

from gpus import TORCH_ENVIRONMENT
from herring.errors import ConfigurationError
from herring_lab.report import markdown, write
from herring_lab.study.gpu import ALGORITHMS, SIZES, gpu_study, tables_of
from herring_lab.study.gpu_training import (
    THRESHOLDS,
    Machine,
    averages_table,
    thresholds_table,
    throughput_table,
    training_jobs,
)
from herring_lab.study.jobs import run_workers
from standin import STANDIN


def test_tables_have_times_and_ratios(tmp_path: pathlib.Path) -> None:
    rows = [
        {"algorithm": algorithm, "bytes": size, "seconds": 1e-6 * size * factor}
        for algorithm, factor in (("butterfly", 3), ("cuda-butterfly", 1), ("ring", 2))
        for size in (8, 4096)
    ]
    times, ratios = tables_of(rows, 2, 1, 7, "stand-in")
    assert {(row["algorithm"], row["bytes"]) for row in times.rows} == {
        (algorithm, size) for algorithm in ALGORITHMS for size in (8, 4096)
    }
    assert "| cuda-butterfly | 4096 | 4096 |" in markdown(times)
    assert "which share 1" in times.title
    assert any("NCCL" in note for note in times.notes)
    for row in ratios.rows:
        assert row["by_host_sums"] == pytest.approx(3)
        assert row["by_ring"] == pytest.approx(2)
    for table in (times, ratios):
        assert json.loads(write(table, tmp_path)[1].read_text())["rows"] == table.rows


def test_sizes_are_those_of_the_paper() -> None:
    assert SIZES[0] == 8
    assert SIZES[-1] == 256 << 20
    assert list(SIZES) == sorted(set(SIZES))


def test_without_a_gpu_it_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigurationError, match="needs a GPU"):
        gpu_study(True, 1, print)


@STANDIN
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_workers_measure(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for name, value in TORCH_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    rows = run_workers(
        "herring_lab.study.gpu:times",
        2,
        algorithm=algorithm,
        sizes=[8, 40_000],
        iterations=2,
        device="cpu",
    )
    assert [(row["algorithm"], row["bytes"]) for row in rows] == [
        (algorithm, 8),
        (algorithm, 40_000),
    ]
    assert all(row["seconds"] > 0 for row in rows)


def test_what_is_measured_depends_on_the_gpus() -> None:
    one, four = Machine(1, "stand-in", True), Machine(4, "stand-in", True)
    assert (one.peer, one.workers) == ("gloo", [2])
    assert (four.peer, four.workers) == ("nccl", [2, 4])
    without = Machine(4, "stand-in", False)
    assert without.peer == "gloo"
    assert any("no NCCL" in note for note in without.notes)
    assert any("share one GPU" in note for note in one.notes)
    assert {job.table for job in training_jobs(one, False)} == {"averages", "steps"}
    jobs = list(training_jobs(four, False))
    assert {job.workers for job in jobs if job.table == "averages"} == {2, 4}
    assert {job.options["library"] for job in jobs} == {"herring", "nccl", "alone"}
    assert [job.options["threshold"] for job in jobs if job.table == "steps"] == [*THRESHOLDS] * 2
    assert [job.workers for job in jobs if job.table == "throughput"] == [1, 2, 2, 4, 4]
    assert len(list(training_jobs(four, True))) < len(jobs)


def test_tables_compare_averages_steps_and_throughput() -> None:
    machine = Machine(2, "stand-in", True)
    rows = [
        {"library": library, "workers": 2, "bytes": size, "seconds": 1e-9 * size * factor}
        for library, factor in (("herring", 1), ("nccl", 2))
        for size in (100_000_000, 200_000_000)
    ]
    averages = averages_table(rows, machine, 7)
    assert [row["by_herring"] for row in averages.rows] == pytest.approx([1, 1, 2, 2])
    assert "| NCCL, 2 workers | nccl | 2 | 200 | 400 | 2 |" in markdown(averages)
    rows = [
        {"library": library, "workers": 2, "threshold": threshold, "seconds": seconds}
        for library, times in (("herring", (0.5, 0.4)), ("nccl", (0.6, 0.9)))
        for threshold, seconds in zip((600_000_000, 25_000_000), times)
    ]
    thresholds = thresholds_table(rows, machine, 7)
    assert [row["by_whole"] for row in thresholds.rows] == pytest.approx([1, 0.8, 1, 1.5])
    rows = [
        {"library": library, "workers": workers, "threshold": 1, "seconds": seconds}
        for library, workers, seconds in (("alone", 1, 0.4), ("herring", 2, 0.5), ("nccl", 2, 0.8))
    ]
    throughput = throughput_table(rows, machine, 7)
    assert [row["efficiency"] for row in throughput.rows] == pytest.approx([1, 0.8, 0.5])
    assert [row["sequences_per_second"] for row in throughput.rows] == pytest.approx([20, 32, 20])


@pytest.mark.parametrize("library", ["herring", "gloo"])
def test_workers_average_and_train(library: str) -> None:
    pytest.importorskip("torch")
    common = {"library": library, "iterations": 2, "device": "cpu"}
    module = "herring_lab.study.gpu_training"
    averages = run_workers(f"{module}:averages", 2, sizes=[40_000, 80_000], **common)
    assert [(row["workers"], row["bytes"]) for row in averages] == [(2, 40_000), (2, 80_000)]
    (whole,) = run_workers(f"{module}:steps", 2, threshold=0, small=True, **common)
    (some,) = run_workers(f"{module}:steps", 2, threshold=20_000, small=True, **common)
    (chosen,) = run_workers(f"{module}:steps", 2, threshold=None, small=True, **common)
    assert whole["threshold"] > some["threshold"] == 20_000
    assert chosen["threshold"] is None
    assert all(row["seconds"] > 0 for row in (*averages, whole, some, chosen))


def test_workers_that_do_not_average_are_found() -> None:
    pytest.importorskip("torch")
    options = {"threshold": None, "iterations": 1, "device": "cpu", "small": True}
    with pytest.raises(ConfigurationError, match="ended with different parameters"):
        run_workers("herring_lab.study.gpu_training:steps", 2, library="alone", **options)


def test_one_worker_trains_alone() -> None:
    pytest.importorskip("torch")
    (row,) = run_workers(
        "herring_lab.study.gpu_training:steps",
        1,
        library="alone",
        threshold=0,
        iterations=2,
        device="cpu",
        small=True,
    )
    assert (row["library"], row["workers"]) == ("alone", 1)
