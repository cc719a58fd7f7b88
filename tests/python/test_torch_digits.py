"""Runs the example as a new user would."""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from batches import RUNS_IN_TURN

pytest.importorskip("torch")
if importlib.util.find_spec("sklearn") is None:  # to import it takes long
    pytest.skip("needs scikit-learn", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def digits(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, str(EXAMPLE), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# Both trainings share a job, because importing torch takes much of their time.
def test_trains_and_half_the_bytes_give_the_same_accuracy(tmp_path):
    outputs = [tmp_path / name / "deeper" / "summary.json" for name in ("full", "half")]
    trainings = [
        shlex.join([str(EXAMPLE), "--epochs", "12", "--output", str(output), *more])
        for output, more in zip(outputs, ([], ["--wire-dtype", "bfloat16", "--no-progress"]))
    ]
    job = warm.run(
        [
            *(sys.executable, "-m", "herring.command.cli", "run", "--timeout", "300"),
            *("-n", "4", "--nodes", "2", "--servers", "2", "--"),
            *(sys.executable, str(RUNS_IN_TURN), *trainings),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
    full, half = (json.loads(output.read_text()) for output in outputs)
    text, ended, text_of_half = job.stdout.partition(f"figures in {outputs[0]}")
    assert ended

    assert full["test_accuracy"] >= 0.96
    assert full["parameters_identical"] is True
    assert (full["workers"], full["nodes"], full["servers"]) == (4, 2, 2)
    assert full["samples_per_second"] > 0
    assert full["seconds"] >= full["training_seconds"] > 0
    assert "step " in text
    assert "all ranks hold bit-identical parameters" in text
    assert f"test accuracy {full['test_accuracy']:.4f}" in text
    # Each worker sends and receives its half of the node's 38,282 float32 gradients per step.
    expected = full["steps"] * 38282 * 4 / 2
    for worker in full["traffic"]["workers"]:
        for key in ("bytes_sent", "bytes_received"):
            assert expected < worker[key] < 1.1 * expected, worker

    assert half["parameters_identical"] is True
    assert abs(half["test_accuracy"] - full["test_accuracy"]) <= 0.005
    assert "step " not in text_of_half
    assert f"test accuracy {half['test_accuracy']:.4f}" in text_of_half
    for a, b in zip(half["traffic"]["workers"], full["traffic"]["workers"]):
        for key in ("bytes_sent", "bytes_received"):
            assert 0.45 < a[key] / b[key] < 0.55


def test_help_teaches():
    result = digits("--help")
    assert result.returncode == 0
    for word in ("herring run -n 4 --nodes 2 --servers 2", "--wire-dtype", "default: 40"):
        assert word in result.stdout


def test_wrong_options_are_named():
    result = digits("--epochs", "0")
    assert result.returncode == 2
    assert "--epochs must be at least 1" in result.stderr


def test_a_batch_that_cannot_be_is_named():
    result = digits("--batch", "5000", "--no-progress")  # without a launcher: one worker
    assert result.returncode == 1
    assert "use a smaller --batch" in result.stderr


def test_alone(tmp_path):
    output = tmp_path / "summary.json"
    result = digits("--epochs", "2", "--output", str(output))
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(output.read_text())["workers"] == 1
    assert "1 worker on 1 node" in result.stdout
