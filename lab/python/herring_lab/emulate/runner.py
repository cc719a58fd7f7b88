"""Runs one command per worker on the hosts of a cluster.

Dedicated servers get hosts of their own; what all of them print, and how they end, comes back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from herring.launch.output import Sink, Source, prefix
from herring.progress import StatusLine, show_time
from herring_lab.emulate.cluster import Cluster, Job
from herring_lab.emulate.environment import (
    SERVER_COMMAND,
    Meeting,
    server_environment,
    worker_environment,
    write_secret,
)
from herring_lab.emulate.mpi import Rank, launch

__all__ = ["Plan", "run"]

_PORT = 29400
_EXIT_TIMEOUT = 124
_LAUNCHER = "mpiexec"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run where.

    Attributes:
      command: for each worker; ``{rank}`` and the like are replaced, see ``substitute``.
      workers: how many.
      servers: dedicated ones, each on a host of its own behind the workers' hosts.
      local_size: workers per host.
      timeout: seconds until everything is ended; None: no limit.
      grace: seconds the others get to end after one has failed.
      labels: put the rank in front of each line.
      settings: more environment variables for workers and servers.
      mpi: ``mpich`` or ``openmpi``: its launcher starts the workers; empty: the lab does.
    """

    command: Sequence[str]
    workers: int
    servers: int = 0
    local_size: int = 1
    timeout: float | None = None
    grace: float = 5.0
    labels: bool = True
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    mpi: str = ""

    @property
    def worker_hosts(self) -> int:
        """How many hosts hold workers."""
        return -(-self.workers // self.local_size)

    @property
    def hosts(self) -> int:
        """How many hosts are needed."""
        return self.worker_hosts + self.servers


def substitute(text: str, values: dict[str, str]) -> str:
    """Replaces ``{name}`` for the names in ``values``; other braces stay."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def run(cluster: Cluster, plan: Plan, output: int | None = None) -> int:
    """Runs the plan on a cluster of ``plan.hosts`` hosts to its end.

    Args:
      cluster: where.
      plan: what.
      output: descriptor for all that is printed; by default this process's own two.

    Returns:
      0 if all workers and servers ended with 0, else the status of the first that did not
      (128 + signal), or 124 after ``plan.timeout``. Nothing runs any more then.
    """
    with tempfile.TemporaryDirectory(prefix="herring-lab-") as directory:
        runner = _Runner(plan, output)
        try:
            runner.start(cluster, directory)
            return runner.wait()
        finally:
            runner.kill()


class _Runner:
    def __init__(self, plan: Plan, output: int | None) -> None:
        self._plan = plan
        self._selector = selectors.DefaultSelector()
        out, err = (1, 2) if output is None else (output, output)
        self._out, self._err = Sink(out, os.isatty(out)), Sink(err, os.isatty(err))
        self._colour = os.isatty(out) and not os.environ.get("NO_COLOR")
        self._running: list[Job] = []
        self._status = 0
        # What the command says goes before: a line stands there only until it speaks.
        self._line = StatusLine() if output is None else None
        self._shown = 0

    def start(self, cluster: Cluster, directory: str) -> None:
        plan = self._plan
        meeting = Meeting(
            cluster.address(0),
            _PORT,
            write_secret(directory),
            plan.workers,
            plan.servers,
            settings=plan.settings,
        )
        common = server_environment(meeting)
        ranks = [self._rank(cluster, meeting, rank) for rank in range(plan.workers)]
        job = launch(plan.mpi, cluster, ranks, directory, plan.labels) if plan.mpi else None
        for index in range(plan.servers):
            host = plan.worker_hosts + index
            self._spawn(cluster, host, SERVER_COMMAND, common, f"server {index}")
        if job is not None:
            argv, env = job
            self._spawn(cluster, 0, argv, env, _LAUNCHER)
            return
        for index, rank in enumerate(ranks):
            self._spawn(cluster, rank.host, rank.argv, rank.environment, str(index), index)

    def _rank(self, cluster: Cluster, meeting: Meeting, rank: int) -> Rank:
        plan = self._plan
        host, local_rank = divmod(rank, plan.local_size)
        local_size = min(plan.local_size, plan.workers - host * plan.local_size)
        values = {
            "rank": str(rank),
            "size": str(plan.workers),
            "host": str(host),
            "local_rank": str(local_rank),
            "address": cluster.address(host),
            "master": cluster.address(0),
            "addresses": ",".join(cluster.address(h) for h in range(plan.worker_hosts)),
        }
        env = worker_environment(meeting, rank, local_rank, local_size)
        # A launcher hands its own variables, those of host 0, to all.
        env["HERRING_HOST_ID"] = cluster.host_id(host)
        env["NCCL_HOSTID"] = cluster.host_id(host)  # or it would take all hosts for one
        return Rank(host, [substitute(word, values) for word in plan.command], env)

    def _spawn(
        self,
        cluster: Cluster,
        host: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        label: str,
        index: int = 0,
    ) -> None:
        name = f"rank {label}" if label.isdecimal() else label
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        job = cluster.popen(host, argv, env, name=name, **pipes)
        self._running.append(job)
        # An MPI's launcher labels what its ranks say itself.
        labelled = self._plan.labels and label != _LAUNCHER
        mark = prefix(label, index, self._colour) if labelled else b""
        for pipe, sink in ((job.process.stdout, self._out), (job.process.stderr, self._err)):
            self._selector.register(pipe, selectors.EVENT_READ, Source(sink, mark))

    def wait(self) -> int:
        plan = self._plan
        start = time.monotonic()
        end_at = None if plan.timeout is None else start + plan.timeout
        while self._running or self._selector.get_map():
            self._read()
            self._show(time.monotonic() - start)
            for job in [job for job in self._running if job.process.poll() is not None]:
                self._running.remove(job)
                code = job.process.returncode
                if code != 0 and self._status == 0:
                    self._status = code if code > 0 else 128 - code
                    how = f"status {code}" if code > 0 else signal.Signals(-code).name
                    self._say(f"{job.name} (host {job.host}) ended with {how}")
                    grace = time.monotonic() + plan.grace
                    end_at = grace if end_at is None else min(end_at, grace)
            if end_at is not None and time.monotonic() > end_at:
                if self._status == 0:
                    names = ", ".join(job.name for job in self._running)
                    self._say(f"not done after {plan.timeout:g} s: {names}")
                    self._status = _EXIT_TIMEOUT
                return self._status
        return self._status

    def _show(self, elapsed: float) -> None:
        """Once a second, on a terminal: how long it runs, and how long it may."""
        if self._line is not None and int(elapsed) != self._shown:
            self._shown = int(elapsed)
            text = f"herring lab: {show_time(elapsed)}"
            if self._plan.timeout is not None:
                text += f", time-out in {show_time(self._plan.timeout - elapsed)}"
            self._line.show(text)

    def _hide(self) -> None:
        if self._line is not None:
            self._line.clear()

    def _read(self) -> None:
        for key, _ in self._selector.select(0.05):
            self._hide()
            data = os.read(key.fd, 1 << 16)
            if data:
                key.data.feed(data)
            else:
                key.data.finish()
                self._selector.unregister(key.fileobj)

    def _say(self, text: str) -> None:
        self._hide()
        self._err.write(f"herring lab: {text}\n".encode(), None)

    def kill(self) -> None:
        self._hide()
        for job in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait()
        self._selector.close()
