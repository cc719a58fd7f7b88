"""Starts benchmark jobs without a launcher, on emulated hosts or on this machine.

The processes get only the documented environment variables.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from herring_lab.emulate import Cluster, Job
from herring_lab.emulate.environment import (
    SERVER_COMMAND,
    Meeting,
    server_environment,
    worker_environment,
    write_secret,
)

_MOST_TAILS = 6  # The number of logs shown when a job fails.


class JobError(RuntimeError):
    """A benchmark job failed or took too long; the message ends with the job's last output."""


class Hosts(Protocol):
    """The hosts on which processes run: ``herring_lab.emulate.Cluster`` or ``ThisMachine``."""

    def popen(self, host: int, argv: Sequence[str], env: Any = None, **options: Any) -> Job:
        """Starts a process on a host."""

    def address(self, host: int) -> str:
        """Returns the address at which other hosts reach this host."""


class ThisMachine:
    """This machine as the only host, with the loopback interface."""

    def __enter__(self) -> ThisMachine:
        return self

    def __exit__(self, *unused: object) -> None:
        pass

    def address(self, host: int) -> str:
        """Returns the loopback address."""
        del host
        return "127.0.0.1"

    def popen(
        self, host: int, argv: Sequence[str], env: Any = None, *, name: str = "", **options: Any
    ) -> Job:
        """Starts a process that is killed when this process dies."""
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *argv],
            env={**os.environ, **(env or {})},
            start_new_session=True,
            **options,
        )
        return Job(process, host, name or argv[0])


@dataclasses.dataclass(frozen=True)
class Layout:
    """The hosts of a job's workers and servers.

    Attributes:
      nodes: the host of each node; each host at most once.
      servers: the host of each dedicated server.
      local_size: workers per node.
    """

    nodes: Sequence[int]
    servers: Sequence[int] = ()
    local_size: int = 1

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.nodes) * self.local_size


class BenchJob:
    """A job that runs ``python -m herring.bench`` on every worker, and its dedicated servers.

    Args:
      hosts: the hosts on which the processes run.
      layout: the hosts of workers and servers.
      arguments: arguments for the benchmark, without ``--json``.
      peer: the library to measure: herring, or gloo or horovod, which need no servers.
      timeout: seconds that any single wait for the job may last.
      operation: the operation to measure: allreduce, or planned (Herring only).
      settings: environment variables for the workers, beside those of the layout.
    """

    def __init__(
        self,
        hosts: Hosts,
        layout: Layout,
        arguments: Sequence[str],
        peer: str = "herring",
        timeout: float = 300.0,
        operation: str = "allreduce",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout = timeout
        self._directory = pathlib.Path(tempfile.mkdtemp(prefix="herring-figures-"))
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._workers: list[Job] = []
        self._servers: list[Job] = []
        self.name = peer
        private = isinstance(hosts, Cluster)
        meeting = Meeting(
            hosts.address(layout.nodes[0]),
            _next_port(private),
            write_secret(self._directory),
            layout.size,
            len(layout.servers),
            interface="eth0" if private else "lo",
        )
        try:
            if peer == "herring":
                for index, host in enumerate(layout.servers):
                    name = f"server {index}"
                    with self._log(name).open("wb") as log:
                        self._servers.append(
                            hosts.popen(
                                host,
                                SERVER_COMMAND,
                                server_environment(meeting),
                                name=name,
                                stdin=subprocess.DEVNULL,
                                stdout=log,
                                stderr=subprocess.STDOUT,
                            )
                        )
            self._result = self._directory / "result.json"
            command = [sys.executable, "-m", "herring.bench", operation]
            command += ["--peer", peer] if operation == "allreduce" else []
            command += ["--json", str(self._result), *arguments]
            for rank in range(layout.size):
                name = f"rank {rank}"
                local = (rank % layout.local_size, layout.local_size)
                env = worker_environment(meeting, rank, *local) | dict(settings or {})
                with self._log(name).open("wb") as log:
                    self._workers.append(
                        hosts.popen(
                            layout.nodes[rank // layout.local_size],
                            command,
                            env,
                            name=name,
                            stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                            stdout=subprocess.PIPE if rank == 0 else log,
                            stderr=log,
                        )
                    )
        except BaseException:
            self.close()
            raise
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> BenchJob:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    @property
    def worker_pids(self) -> list[int]:
        """The workers' process IDs, by rank."""
        return [job.process.pid for job in self._workers]

    @property
    def server_pids(self) -> list[int]:
        """The dedicated servers' process IDs."""
        return [job.process.pid for job in self._servers]

    def wait_ready(self) -> bool:
        """Waits until the job is ready for a batch (``--paced``).

        Returns:
          True, or False at the end of the job's output.
        """
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                line = self._lines.get(timeout=0.2)
            except queue.Empty:
                self._look(deadline)
                continue
            if line is None:
                return False
            if line.startswith("# ready:"):
                return True

    def run_batch(self) -> bool:
        """Lets a job that is ready run a batch, then returns the result of ``wait_ready``."""
        stdin = self._workers[0].process.stdin
        assert stdin is not None
        try:
            stdin.write(b"\n")
            stdin.flush()
        except BrokenPipeError:
            self._fail("rank 0 has ended")
        return self.wait_ready()

    def finish(self) -> dict[str, Any]:
        """Waits for the end of the job and returns its JSON document.

        The additional key ``server_peak_bytes`` has each dedicated server's peak resident size.
        """
        deadline = time.monotonic() + self._timeout
        for job in [*self._workers, *self._servers]:
            while job.process.poll() is None:
                self._look(deadline)
                time.sleep(0.02)
            if job.process.returncode != 0:
                self._fail(f"{job.name} ended with status {job.process.returncode}")
        document = json.loads(self._result.read_text())
        document["server_peak_bytes"] = [job.peak_bytes for job in self._servers]
        return document

    def close(self) -> None:
        """Kills processes that still run, and removes the logs."""
        for job in [*self._workers, *self._servers]:
            if job.process.poll() is None:
                os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
            if job.process.stdin is not None:
                try:
                    job.process.stdin.close()
                except BrokenPipeError:
                    pass
        shutil.rmtree(self._directory, ignore_errors=True)

    def _log(self, name: str) -> pathlib.Path:
        return self._directory / f"{name.replace(' ', '-')}.log"

    def _read(self) -> None:
        stream = self._workers[0].process.stdout
        assert stream is not None
        for line in stream:
            self._lines.put(line.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def _look(self, deadline: float) -> None:
        """Records servers' memory; fails the job if a process failed or the deadline has passed."""
        for server in self._servers:
            server.poll_memory()
        for job in [*self._workers, *self._servers]:
            if job.process.poll() not in (None, 0):
                # Other processes need a moment to log how they saw the failure.
                time.sleep(0.5)
                self._fail(f"{job.name} ended with status {job.process.returncode}")
        if time.monotonic() > deadline:
            self._fail(f"nothing happened for {self._timeout:g} s")

    def _fail(self, reason: str) -> None:
        tails = []
        for job in [*self._workers, *self._servers]:
            log = self._log(job.name)
            text = log.read_text(errors="replace").strip() if log.exists() else ""
            if text:
                tails.append(f"--- {job.name}, host {job.host}\n" + text[-1500:])
        raise JobError(f"{self.name} job: {reason}\n" + "\n".join(tails[:_MOST_TAILS]))


def run_pairs(first: BenchJob, second: BenchJob) -> None:
    """Lets two paced jobs run their batches in turns; each job starts every second pair."""
    jobs = [first, second]
    more = [job.wait_ready() for job in jobs]
    turn = 0
    while any(more):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            if more[index]:
                more[index] = jobs[index].run_batch()
        turn += 1


_port = 29400


def _next_port(private: bool) -> int:
    """Returns a free port; the next port, where other libraries than Herring meet, is free too."""
    global _port
    if private:  # Nobody else uses ports of a cluster's hosts.
        _port += 10
        return _port
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port
