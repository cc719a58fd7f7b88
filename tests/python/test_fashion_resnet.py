"""The tutorial's example, on data of its format, and the outputs that the tutorial quotes."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import warm
from batches import RUNS_IN_TURN

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "fashion_resnet.py"
PAGE = ROOT / "docs" / "tutorials" / "fashion.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )


def write_data(folder: Path) -> None:
    """Writes files like the package's, of images that are bright at the top or at the bottom."""
    random = np.random.default_rng(0)
    for name, count in (("train", 256), ("t10k", 64)):
        labels = random.integers(0, 2, count, dtype=np.uint8)
        images = random.integers(0, 64, (count, 28, 28), dtype=np.uint8)
        images[labels == 0, :14] += 128
        images[labels == 1, 14:] += 128
        for kind, header, numbers in (("images-idx3", 16, images), ("labels-idx1", 8, labels)):
            path = folder / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + numbers.tobytes()))


def shape(line: str) -> str:
    """Returns a line with its numbers and its hash left out."""
    return re.sub(r"[0-9a-f]{12}$|[0-9][0-9.]*", "#", line)


def test_herring_and_gloo_train_the_same_model_and_print_what_the_tutorial_quotes(
    tmp_path: Path,
) -> None:
    write_data(tmp_path)
    options = ["--data", str(tmp_path), "--steps", "8", "--every", "4", "--batch", "32"]
    curves = [tmp_path / "herring.csv", tmp_path / "gloo.csv"]
    ways = [
        shlex.join([str(EXAMPLE), *options, "--curve", str(curve), *more])
        for curve, more in zip(curves, ([], ["--gloo"]), strict=True)
    ]
    launcher = ["-m", "herring.command.cli", "run", "-n", "2", "--nodes", "2", "--servers", "1"]
    job = run(*launcher, "--", sys.executable, str(RUNS_IN_TURN), *ways)
    assert job.returncode == 0, job.stdout
    # With two ranks there is one sum, whatever the order, so that all bits are the same.
    ours, theirs = re.findall(
        r"the end, workers: 2, parameters: (\w{12})$", job.stdout, re.MULTILINE
    )
    assert ours == theirs
    points = [curve.read_text().splitlines() for curve in curves]
    assert [line.split(",")[::2] for line in points[0]] == [
        line.split(",")[::2] for line in points[1]
    ]
    assert [line.split(",")[0] for line in points[0]] == ["step", "4", "8"]
    quoted = {shape(line) for line in PAGE.read_text(encoding="utf-8").splitlines()}
    printed = {shape(line) for line in job.stdout.splitlines() if line.startswith("[0] ")}
    assert printed - quoted == set()
    assert len(printed) == 3


def test_missing_data_is_named_with_what_to_install(tmp_path: Path) -> None:
    job = run(str(EXAMPLE), "--data", str(tmp_path))
    assert job.returncode == 1
    assert f"There is no {tmp_path}/train-images-idx3-ubyte.gz. On Debian, install" in job.stdout
    assert "apt-get install dataset-fashion-mnist" in job.stdout


def test_the_data_of_the_package_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import fashion_resnet

    if not fashion_resnet.DATA.exists():
        pytest.skip("needs Debian's package dataset-fashion-mnist")
    images, labels = fashion_resnet.load(fashion_resnet.DATA, "test")
    assert (images.shape, labels.shape) == ((10000, 1, 28, 28), (10000,))
    assert labels.bincount().tolist() == [1000] * 10
    assert sum(one.numel() for one in fashion_resnet.resnet14().parameters()) == 174_778
