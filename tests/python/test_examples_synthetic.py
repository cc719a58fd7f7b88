"""The example that trains on synthetic data: small and on the CPU, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from batches import RUNS_IN_TURN

torch = pytest.importorskip("torch")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "synthetic.py"
HERRING_RUN = [
    *("-m", "herring.command.cli", "run", "-n", "2", "--nodes", "2"),
    "--",
    sys.executable,
]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NOUNS = {"resnet50": "images", "bert": "sequences"}


def run(*command: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    return warm.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


# Trains a small model.
OPTIONS = ["--tiny", "--device", "cpu", "--batch", "4", "--steps", "4", "--warmup", "1"]


def trained(said: str, model: str) -> str:
    """Checks what a job of two workers prints, which contains the final loss, and returns it."""
    assert re.search(rf"[1-9][0-9,.]* {NOUNS[model]}/s, [0-9,.]+ per worker", said), said
    assert "2 workers, 4 " in said
    return said


def loss_of(said: str) -> float:
    return float(re.search(r"loss ([0-9.]+)", said)[1])


# All ways to average share a job, because importing torch takes most of the time.
@pytest.mark.parametrize("model", NOUNS)
def test_herring_and_ddp_train_alike(model: str) -> None:
    ways = [
        shlex.join([str(EXAMPLE), "--model", model, "--average", average, *OPTIONS])
        for average in ("herring", "ddp", "none")
    ]
    job = run(*HERRING_RUN, str(RUNS_IN_TURN), *ways, seconds=220)
    assert job.returncode == 0, job.stdout
    parts = job.stdout.split(f"tiny {model}: ")[1:]
    herring, ddp, alone = (trained(part, model) for part in parts)
    for said, name in ((herring, "herring"), (ddp, "ddp over gloo")):
        assert f", {name}\n" in said
        assert "checked: all workers hold the same parameters" in said
    assert loss_of(herring) == pytest.approx(loss_of(ddp), abs=2e-4)
    assert "checked" not in alone
    assert loss_of(alone) != pytest.approx(loss_of(herring), abs=2e-4)


def test_it_starts_under_torchrun_and_in_16_bits() -> None:
    job = run(*TORCHRUN, str(EXAMPLE), "--model", "bert", "--dtype", "bfloat16", *OPTIONS)
    assert job.returncode == 0, job.stdout
    said = trained(job.stdout, "bert")
    assert "bfloat16, on cpu" in said
    assert "checked: all workers hold the same parameters" in said


def test_models_have_the_sizes_of_their_papers(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    import synthetic

    with torch.device("meta"):
        sizes = [
            sum(parameter.numel() for parameter in model(tiny=False).parameters())
            for model in (synthetic.ResNet, synthetic.Bert)
        ]
    # torchvision's ResNet-50; BERT-base with the masked-word head, without token types and pooler.
    assert sizes == [25_557_032, 109_482_240 - 2 * 768 - 590_592 + 768 * 769 + 2 * 768 + 30522]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--device", "cuda"], "--device cuda: torch"),
        (["--average", "ddp"], "--average ddp needs torchrun, or herring run"),
    ],
)
def test_what_cannot_be_is_said(arguments: list[str], message: str, monkeypatch) -> None:
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("torch sees a GPU")
    monkeypatch.delenv("RANK", raising=False)
    job = run(str(EXAMPLE), "--tiny", *arguments)
    assert job.returncode != 0
    assert message in job.stdout


def test_help_teaches() -> None:
    said = run(str(EXAMPLE), "--help").stdout
    assert "herring run -n 8 -- python examples/synthetic.py" in said
    assert "torchrun --nproc-per-node 8 examples/synthetic.py --average ddp" in said
