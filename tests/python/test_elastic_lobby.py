"""`herring rendezvous`: the lobby of an elastic job that no launcher of Herring's has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import warm
from jobs import program
from launched import HERRING
from ports import held, port_of

pytestmark = pytest.mark.usefixtures("runtime_folder")


class Outside:
    """Processes of a job that no launcher has started."""

    def __init__(self, folder: Path) -> None:
        self.holder = held()
        self.port = port_of(self.holder)
        secret = folder / "secret"
        secret.touch(mode=0o600)
        secret.write_bytes(os.urandom(32))
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HERRING_")},
            "HERRING_ELASTIC": f"127.0.0.1:{self.port}",
            "HERRING_SECRET_FILE": str(secret),
            "HERRING_LOG_LEVEL": "info",
        }
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, slot: int = 0) -> tuple[subprocess.Popen[bytes], Path]:
        """Returns the process, and the file with what it says."""
        said = self.folder / f"said-{len(self.processes)}"
        with said.open("wb") as file:
            one = warm.Popen(
                command,
                env={**self.environment, "HERRING_RANK": str(slot)},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(one)
        return one, said

    def lobby(self, *options: str) -> subprocess.Popen[bytes]:
        return self.start(*HERRING, "rendezvous", *options)[0]

    def end(self) -> None:
        self.holder.close()
        for one in self.processes:
            one.kill()
            one.wait()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    found = Outside(tmp_path)
    yield found
    found.end()


def test_training_outlives_its_lobby(outside: Outside, tmp_path: Path) -> None:
    lobby = outside.lobby("-n", "2")
    command = [sys.executable, *program("elastic_steps", str(tmp_path), "20", "3")]
    workers = [outside.start(*command, slot=slot) for slot in range(2)]
    deadline = time.monotonic() + 600
    while not all("generation 1, 2 workers" in said.read_text() for _, said in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    lobby.kill()
    lobby.wait()
    server = outside.start(*HERRING, "server")  # it waits for the lobby
    outside.lobby("-n", "2")
    workers.append(outside.start(*command, slot=7))
    for one, said in workers:
        assert one.wait(600) == 0, said.read_text()
        assert "3 workers, sizes [" in said.read_text(), said.read_text()
    assert server[0].wait(600) == 0, server[1].read_text()


def test_wrong_options_of_the_lobby() -> None:
    for options, text in (
        ([], "give --listen HOST:PORT, or set HERRING_ELASTIC"),
        (["--listen", "127.0.0.1:1", "--min-workers", "3", "-n", "2"], "each must be at least"),
        (["--listen", "nowhere"], "--listen"),
        (["--listen", "127.0.0.1:1"], "HERRING_SECRET_FILE"),
    ):
        job = warm.run(
            [*HERRING, "rendezvous", *options],
            env={k: v for k, v in os.environ.items() if not k.startswith("HERRING_")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert job.returncode == 2 and text in job.stderr, job.stderr
