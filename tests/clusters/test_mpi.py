"""Tests workers and servers in one command line of mpirun, on this host."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

WORKER = [sys.executable, str(pathlib.Path(__file__).with_name("worker.py"))]
SERVER = [sys.executable, "-m", "herring.command.cli", "server"]
OPEN_MPI = ["mpirun.openmpi", "--oversubscribe", "--mca", "oob_tcp_if_include", "lo"]
SIZE = {"mpirun.openmpi": ["-x", "HERRING_SIZE=4"], "mpiexec.hydra": ["-env", "HERRING_SIZE", "4"]}


def run(
    launcher: list[str], *parts: list[str], more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `parts` in one command line of the launcher, separated by colons."""
    if not shutil.which(launcher[0]):
        pytest.skip(f"{launcher[0]} is not installed")
    line = [word for part in parts for word in [":", *part]][1:]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HERRING_", "OMPI_", "PMI", "SLURM"))
    }
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        [*launcher, *line],
        env={**kept, **root, "OMP_NUM_THREADS": "1", **(more or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(done: subprocess.CompletedProcess[str], size: int, servers: int) -> None:
    """Asserts that `size` workers have met `servers` servers."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"rank (\d+)/(\d+) local \d+/(\d+) .* dedicated (\d+)", done.stdout)
    expected = [(str(rank), str(size), str(size), str(servers)) for rank in range(size)]
    assert sorted(found) == expected, done.stdout


@pytest.fixture(params=[OPEN_MPI, ["mpiexec.hydra"]], ids=["openmpi", "mpich"])
def launcher(request: pytest.FixtureRequest) -> list[str]:
    return request.param


def test_workers_alone(launcher: list[str]) -> None:
    check(run(launcher, ["-n", "3", *WORKER]), 3, 0)


def test_servers_in_the_same_line(launcher: list[str]) -> None:
    done = run(launcher, ["-n", "4", *SIZE[launcher[0]], *WORKER], ["-n", "2", *SERVER])
    check(done, 4, 2)


def test_a_variable_for_the_whole_line(launcher: list[str]) -> None:
    done = run(
        launcher, ["-n", "4", *WORKER], ["-n", "1", *SERVER], more={"HERRING_SIZE": "4"}
    )  # fmt: skip
    check(done, 4, 1)


def test_at_an_address(launcher: list[str]) -> None:
    more = {"HERRING_SIZE": "4", "HERRING_RENDEZVOUS": "127.0.0.1:29733"}
    check(run(launcher, ["-n", "4", *WORKER], ["-n", "1", *SERVER], more=more), 4, 1)


def test_servers_that_are_counted_as_workers(launcher: list[str]) -> None:
    more = {"HERRING_CONNECT_TIMEOUT": "10"}
    done = run(launcher, ["-n", "2", *WORKER], ["-n", "1", *SERVER], more=more)
    assert done.returncode != 0
    assert "this server is rank 2 of its launch" in done.stderr
    assert "set HERRING_SIZE to the number of workers" in done.stderr


def test_servers_first(launcher: list[str]) -> None:
    more = {"HERRING_SIZE": "2", "HERRING_CONNECT_TIMEOUT": "3"}
    done = run(launcher, ["-n", "1", *SERVER], ["-n", "2", *WORKER], more=more)
    assert done.returncode != 0
    assert "put the servers last" in done.stderr
