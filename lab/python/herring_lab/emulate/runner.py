"""Runs one command per worker on the hosts of a cluster, and dedicated servers on further hosts.

The runner forwards what the processes print, and returns how they ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from herring.base.units import show_time
from herring.launch.output import Sink, Source, prefix
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import Cluster, Job
from herring_lab.emulate.environment import (
    SERVER_COMMAND,
    Meeting,
    server_environment,
    worker_environment,
    write_secret,
)
from herring_lab.emulate.mpi import Rank, launch
from herring_lab.progress import StatusLine

_PORT = 29400
_EXIT_TIMEOUT = 124
_LAUNCHER = "mpiexec"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The processes of a job and their hosts.

    Attributes:
      command: the command of each worker; ``{rank}`` and others are replaced, see ``substitute``.
      workers: the number of workers.
      servers: the number of dedicated servers, each on a host of its own after the workers' hosts.
      local_size: workers per host.
      timeout: seconds after which all processes are ended; None: no limit.
      grace: seconds that the other processes get to end after one has failed.
      labels: whether each line begins with the rank.
      settings: more environment variables for workers and servers.
      mpi: ``mpich`` or ``openmpi``, whose launcher starts the workers; empty: the lab starts them.
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
        """The number of hosts with workers."""
        return -(-self.workers // self.local_size)

    @property
    def hosts(self) -> int:
        """The number of hosts that the job needs."""
        return self.worker_hosts + self.servers


def substitute(text: str, values: dict[str, str]) -> str:
    """Replaces ``{name}`` for each name in ``values``; other braces stay."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def run(cluster: Cluster, plan: Plan, output: int | None = None) -> int:
    """Runs a plan to its end. No process of the plan runs any more when the function returns.

    Args:
      cluster: a cluster of ``plan.hosts`` hosts.
      plan: the processes to run.
      output: the descriptor for everything that is printed; None: this process's standard output
        and standard error.

    Returns:
      0 if all workers and servers ended with 0, else the status of the first that did not
      (128 + signal), or 124 after ``plan.timeout``.
    """
    with folders.temporary("lab") as directory:
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
        # The status line disappears before anything that the command prints.
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
        # Set per host, because an MPI launcher gives its own variables, those of host 0, to all.
        env["HERRING_HOST_ID"] = cluster.host_id(host)
        env["NCCL_HOSTID"] = cluster.host_id(host)  # otherwise NCCL would take all hosts for one
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
        # An MPI launcher labels the lines of its ranks itself.
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
        """Shows once a second, on a terminal, the elapsed time and the time left."""
        if self._line is not None and int(elapsed) != self._shown:
            self._shown = int(elapsed)
            text = f"herring lab: {show_time(elapsed)}"
            if self._plan.timeout is not None:
                text += f", timeout in {show_time(self._plan.timeout - elapsed)}"
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
