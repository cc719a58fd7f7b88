"""Four workers of examples/bert.py learn what one learns from the same batches."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import warm

pytest.importorskip("torch")
for name in ("tokenizers", "pytorch_optimizer"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "bert.py"


def bert(layout: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [
            *(sys.executable, "-m", "herring.command.cli", "run", "--timeout", "300", *layout),
            *("--", sys.executable, str(EXAMPLE), *arguments),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_losses_of_four_workers_are_those_of_one(tmp_path: Path) -> None:
    losses = {}
    for what, layout, wire in (
        ("one", ["-n", "1"], "float32"),
        ("four", ["-n", "4", "--nodes", "2"], "float32"),
        ("half", ["-n", "4", "--nodes", "2"], "bfloat16"),
    ):
        path = tmp_path / f"{what}.json"
        options = ["--vocabulary", str(tmp_path / "vocabulary.json")]
        options += ["--steps", "10", "--batch", "16", "--wire-dtype", wire, "--record", str(path)]
        job = bert(layout, *options)
        assert job.returncode == 0, job.stdout[-3000:] + job.stderr[-3000:]
        assert "length 128, step 9 of 9" in job.stdout and "length 512, step 1 of 1" in job.stdout
        assert "parameters of all ranks: bit-identical" in job.stdout
        losses[what] = json.loads(path.read_text())["losses"]
    assert len(losses["one"]) == 10
    assert losses["one"][8] < losses["one"][0] - 0.1  # it learns
    assert losses["four"] == pytest.approx(losses["one"], rel=1e-4)
    assert losses["half"] == pytest.approx(losses["one"], rel=1e-3)
    assert losses["half"] != losses["four"]


def test_a_batch_that_is_too_small() -> None:
    job = bert(["-n", "3"], "--batch", "8")
    assert job.returncode != 0
    assert "a batch of 8 has 2 sequences of 512, too few for 3 workers; give --batch 12" in (
        job.stdout + job.stderr
    )
