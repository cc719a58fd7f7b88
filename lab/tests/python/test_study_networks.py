"""`herring study networks`: data, pace and tables; a short training if the data is installed."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib

import pytest

torch = pytest.importorskip("torch")

from herring.errors import ConfigurationError  # noqa: E402
from herring_lab.study import networks  # noqa: E402
from herring_lab.study.jobs import run_workers  # noqa: E402


def test_tables_compare_with_full_synchrony() -> None:
    def run(seconds: float, accuracy: float) -> dict:
        return {"seconds": seconds, "accuracy": accuracy, "rounds": 9, "curve": [(1.0, 0.5)]}

    runs = {"full": [run(40, 0.70), run(42, 0.72)], "majority": [run(20, 0.71), run(21, 0.71)]}
    table, curve = networks._tables("images", "title", runs)
    full, majority = table.rows
    assert full["speedup"] == 1
    assert majority["speedup"] == pytest.approx(2)
    assert full["accuracy_percent"] == pytest.approx(71)
    assert full["deviation"] == pytest.approx(2**0.5)
    assert [row["mode"] for row in curve.rows] == ["full", "majority"]


def test_missing_data_names_the_package(monkeypatch, tmp_path: pathlib.Path) -> None:
    gone = dataclasses.replace(networks.TASKS["images"], folder=tmp_path / "nothing")
    monkeypatch.setitem(networks.TASKS, "images", gone)
    with pytest.raises(ConfigurationError, match="dataset-fashion-mnist"):
        networks.networks_study(True, lambda *_: None)


@pytest.fixture
def collections(tmp_path: pathlib.Path) -> pathlib.Path:
    """Five collections of texts of 1 to 40 words; each collection has words of its own."""
    for number, name in enumerate(networks._CLASSES):
        lines = [" ".join(["abcde"[number] * 3] * (1 + (number + i) % 40)) for i in range(120)]
        (tmp_path / name).write_text("\n%\n".join(lines))
    return tmp_path


def test_a_step_takes_as_long_as_its_longest_text(collections: pathlib.Path) -> None:
    model, _, batches, (test, labels) = networks.texts(collections, 1.0)
    assert len(test) == len(labels) == 120  # a fifth
    seen = []
    for rank in range(4):
        for inputs, wanted, seconds in itertools.islice(batches(rank, 4, 1), 5):
            assert inputs.shape == (16, inputs.shape[1])
            assert wanted.shape == (16,)
            seen.append((inputs.shape[1], seconds))
    assert len({round(seconds / length, 9) for length, seconds in seen}) == 1
    assert len({length for length, _ in seen}) > 5
    with torch.no_grad():  # padding changes nothing
        short = test[:1, : int((test[0] != 0).sum())]
        assert torch.allclose(model(short), model(test)[:1], atol=1e-5)


@pytest.mark.parametrize("mode", ["full", "majority"])
def test_training_learns_and_notes_its_course(mode: str, collections: pathlib.Path) -> None:
    (row,) = run_workers(
        "herring_lab.study.networks:train",
        4,
        task="texts",
        mode=mode,
        seed=1,
        steps=40,
        scale=0.01,
        folder=str(collections),
    )
    assert row["rounds"] >= 40
    assert row["accuracy"] > 0.5  # chance alone gives a fifth
    times = [moment for moment, _ in row["curve"]]
    assert len(times) > 1 and times == sorted(times)
    assert times[-1] <= row["seconds"]
