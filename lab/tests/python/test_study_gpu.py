"""``herring study gpu``: its tables, and its workers on a stand-in for CUDA's driver."""

from __future__ import annotations

import json
import pathlib

import pytest

from gpus import TORCH_ENVIRONMENT
from herring.errors import ConfigurationError
from herring_lab.report import markdown, write
from herring_lab.study.gpu import ALGORITHMS, SIZES, gpu_study, tables_of
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
