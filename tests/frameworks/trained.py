"""Runs a script of `scripts` with two ranks under Gloo and under Herring, and compares them."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
]
HERRING_RUN = [sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--timeout", "1200"]
# All launchers run the same script.
STARTS = {
    "torchrun": [*TORCHRUN, "-m", "herring.torch"],
    "two-nodes": [
        *(*HERRING_RUN, "--nodes", "2", "--servers", "1", "--"),
        *(sys.executable, "-m", "herring.torch"),
    ],
}


def run(command: Sequence[str], script: str, folder: str, **environment: str) -> tuple[int, str]:
    """Runs a script; returns its exit status and output."""
    variables = {"OUT": folder, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    done = subprocess.run(
        [*command, str(SCRIPTS / script)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1300,
        check=False,
    )
    return done.returncode, done.stdout


def results(command: Sequence[str], script: str, **environment: str) -> list[dict[str, Any]]:
    """Runs a script; returns what each rank reported."""
    with tempfile.TemporaryDirectory() as folder:
        status, output = run(command, script, folder, **environment)
        assert status == 0, output[-6000:]
        return [torch.load(f"{folder}/rank{rank}.pt", weights_only=False) for rank in range(2)]


@functools.cache
def by_gloo(script: str, precision: str) -> list[dict[str, Any]]:
    """Returns the results of a script under torchrun and Gloo, without Herring."""
    return results(TORCHRUN, script, **({"PRECISION": precision} if precision else {}))


def compare(
    command: Sequence[str], script: str, precision: str = "", **environment: str
) -> dict[str, Any]:
    """Runs a script; fails unless every rank's end is bit-identical to Gloo's.

    With two ranks, there is only one order in which to add.

    Returns:
      What rank 0 reported.
    """
    wanted = by_gloo(script, precision)
    if precision:
        environment["PRECISION"] = precision
    found = results(command, script, **environment)
    for rank, (one, other) in enumerate(zip(found, wanted)):
        assert (one["backend"], other["backend"]) == ("herring", "gloo")
        assert one["served"] and not other["served"]
        assert one["state"].keys() == other["state"].keys()
        for name, value in one["state"].items():
            assert torch.equal(value, other["state"][name]), f"rank {rank}: {name}"
        left, right = (
            {name: x for name, x in report.items() if name not in ("state", "backend", "served")}
            for report in (one, other)
        )
        assert left == right, f"rank {rank}: {left} {right}"
    return found[0]


def check_death(script: str) -> None:
    """Kills rank 1 during training; fails unless rank 0 ends with an error that names rank 1."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*HERRING_RUN, "--keep-going", "--", sys.executable, "-m", "herring.torch"]
        status, output = run(command, script, folder, FATAL="20")
        assert status != 0
        assert not list(Path(folder).glob("rank*.pt")), "it has gone on"
        said = re.findall(r"^\[0\].*Error: .*rank 1 .*", output, re.MULTILINE)
        assert said, output[-6000:]
