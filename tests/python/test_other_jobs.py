"""A job and the processes of other jobs: a typed error on their side, no effect on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warm
from jobs import PREAMBLE
from ports import held, port_of

TRAIN = """
herring.init()
step = 0
while not herring.broadcast_object(os.path.exists(os.environ["PLACE"]), name="stop"):
    array = np.full(100_000, herring.rank() + step % 5, np.float32)
    herring.allreduce(array, "sum")
    assert (array == 1 + 2 * (step % 5)).all(), step
    if step == 3 and herring.rank() == 0:
        print("trains", flush=True)
    step += 1
herring.shutdown()
print("done", step > 3)
"""
JOIN = "herring.init()\nprint('joined')"
SECRET, OTHER_SECRET = "ab" * 32, "cd" * 32


class Processes:
    """Starts processes of jobs by hand, at one rendezvous."""

    def __init__(self) -> None:
        self._holder = held()
        self.port = port_of(self._holder)
        self._all: list[subprocess.Popen[str]] = []

    def start(self, words: list[str], **environment: str) -> subprocess.Popen[str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith("HERRING_")}
        process = warm.Popen(
            [sys.executable, *words],
            env={
                **keep,
                "HERRING_RENDEZVOUS": f"127.0.0.1:{self.port}",
                "HERRING_SECRET": SECRET,
                "HERRING_JOB": "ours",
                "HERRING_CONNECT_TIMEOUT": "600",
                "OMP_NUM_THREADS": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._all.append(process)
        return process

    def rank(self, script: str, rank: int, **environment: str) -> subprocess.Popen[str]:
        size = {"HERRING_SIZE": "2", "HERRING_SERVERS": "1", "HERRING_RANK": str(rank)}
        return self.start(["-c", PREAMBLE + script], **{**size, **environment})

    def server(self, *options: str, **environment: str) -> subprocess.Popen[str]:
        return self.start(["-m", "herring.command.cli", "server", *options], **environment)

    def end(self) -> None:
        self._holder.close()
        for process in self._all:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    started = Processes()
    yield started
    started.end()


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=600)[0]


def trains(workers: list[subprocess.Popen[str]]) -> None:
    """Waits until the job trains."""
    assert workers[0].stdout is not None
    lines = []
    for line in workers[0].stdout:  # rank 0 also logs whom it has refused
        lines.append(line)
        if line.strip() == "trains":
            return
    raise AssertionError("".join(lines))


def ends(workers: list[subprocess.Popen[str]], stop: Path) -> None:
    stop.touch()
    for worker in workers:
        output = said(worker)
        assert worker.returncode == 0 and output.strip().endswith("done True"), output


def test_processes_of_other_jobs_are_told_why_and_the_job_trains_on(
    processes: Processes, tmp_path: Path
) -> None:
    server = processes.server("--stay")
    for turn in range(2):  # the server stays for the next job of the same processes
        stop = tmp_path / str(turn)
        workers = [processes.rank(TRAIN, rank, PLACE=str(stop)) for rank in range(2)]
        trains(workers)
        intruders = {
            "AuthenticationError": [
                processes.rank(JOIN, 1, HERRING_SECRET=OTHER_SECRET),
                processes.server(HERRING_SECRET=OTHER_SECRET),
            ],
            "HERRING_JOB": [
                processes.rank(JOIN, 1, HERRING_JOB="theirs"),
                processes.server(HERRING_JOB="theirs"),
            ],
            "comes too late": [processes.rank(JOIN, 1, HERRING_CONNECT_TIMEOUT="15")],
            "another one is not needed": [processes.server()],
        }
        for text, told in intruders.items():
            for process in told:
                output = said(process)
                assert text in output and process.returncode != 0, output
        ends(workers, stop)
    assert server.poll() is None


def test_a_rendezvous_that_another_job_has_taken_over_is_named(
    processes: Processes, tmp_path: Path
) -> None:
    # Rank 0 of our job is gone. Another job listens at its address, and waits for its own rank 1.
    theirs = {"HERRING_JOB": "theirs", "HERRING_SECRET": OTHER_SECRET, "HERRING_SERVERS": "0"}
    stop = tmp_path / "stop"
    first = processes.rank(TRAIN, 0, PLACE=str(stop), **theirs)
    left = [
        processes.rank(JOIN, 1),
        processes.rank(JOIN, 1, HERRING_SECRET=OTHER_SECRET),
        processes.rank(JOIN, 1, HERRING_JOB="theirs"),
        processes.server("--stay"),
    ]
    for process, text in zip(
        left, ("HERRING_JOB", "HERRING_JOB", "the job's secret", "HERRING_JOB")
    ):
        output = said(process)
        assert text in output and process.returncode != 0, output
    workers = [first, processes.rank(TRAIN, 1, PLACE=str(stop), **theirs)]
    trains(workers)
    ends(workers, stop)
