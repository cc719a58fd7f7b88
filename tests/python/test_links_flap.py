"""Links that lose packets, that are slow or that go down for a while, between emulated hosts."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulated import needs_hosts
from herring_lab.emulate import Cluster
from herring_lab.emulate.environment import (
    SERVER_COMMAND,
    Meeting,
    server_environment,
    worker_environment,
    write_secret,
)
from jobs import program

WORKERS, SERVERS = 2, 2
HOSTS = WORKERS + SERVERS

with_and_without_failover = pytest.mark.parametrize(
    "failover", [False, True], ids=["without-failover", "with-failover"]
)


class Job:
    """Two workers and two dedicated servers, each on a host of its own."""

    def __init__(self, hosts: Cluster, folder: Path, failover: bool, heartbeats: float) -> None:
        settings = {
            "HERRING_FAILOVER": str(failover).lower(),
            "HERRING_HEARTBEAT_TIMEOUT": str(heartbeats),
        }
        secret = write_secret(folder)
        meeting = Meeting(hosts.address(0), 29400, secret, WORKERS, SERVERS, settings=settings)
        command = [sys.executable, *program("link_outages", str(folder))]
        self._folder = folder
        self._logs = [folder / f"log.{host}" for host in range(HOSTS)]
        self._processes = []
        for host, log in enumerate(self._logs):
            argv, env = command, worker_environment(meeting, host, 0, 1)
            if host >= WORKERS:
                argv, env = [*SERVER_COMMAND, "--stay"], server_environment(meeting)
            with log.open("w") as output:
                job = hosts.popen(host, argv, env, stdout=output, stderr=subprocess.STDOUT)
            self._processes.append(job.process)

    @property
    def output(self) -> str:
        """What all processes have printed."""
        return "\n".join(f"host {i}:\n{log.read_text()}" for i, log in enumerate(self._logs))

    def rounds(self) -> int:
        """Returns the number of rounds that rank 0 has completed."""
        with contextlib.suppress(FileNotFoundError):
            return int((self._folder / "rounds").read_text())
        return 0

    def await_rounds(self, more: int) -> None:
        """Waits until this many more rounds are complete."""
        goal = self.rounds() + more
        self.wait(lambda: self.rounds() >= goal)

    def wait(self, condition: Callable[[], object], seconds: float = 600) -> None:
        """Waits for something while both workers run."""
        end = time.monotonic() + seconds
        while not condition():
            workers = self._processes[:WORKERS]
            assert all(one.poll() is None for one in workers), self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def finish(self) -> str:
        """Lets the workers end, and returns what all processes have printed."""
        (self._folder / "stop").touch()
        for process in self._processes[:WORKERS]:
            assert process.wait(600) == 0, self.output
        return self.output


@contextlib.contextmanager
def running(
    folder: Path, failover: bool, heartbeats: float = 4, **network: Any
) -> Iterator[tuple[Cluster, Job]]:
    with Cluster(HOSTS, **network) as hosts:
        job = Job(hosts, folder, failover, heartbeats)
        job.await_rounds(3)
        yield hosts, job


@contextlib.contextmanager
def outage(hosts: Cluster, host: int) -> Iterator[None]:
    """Takes a host's port out of the switch for a while: no host sees that its link is down."""
    port = ["link", "set", f"p{host}"]
    switch = ["ip", "-n", f"{hosts.namespace(host).rpartition('-')[0]}-sw0"]
    subprocess.run([*switch, *port, "nomaster"], check=True)
    yield
    subprocess.run([*switch, *port, "master", "br0"], check=True)


@needs_hosts(strict=True)
@with_and_without_failover
def test_lost_packets_cost_time_only(failover: bool, tmp_path: Path) -> None:
    with running(tmp_path, failover, heartbeats=60, loss=0.01, kernel=False) as (hosts, job):
        job.await_rounds(20)
        hosts.set_delays(loss=0.05)
        job.await_rounds(20)
        output = job.finish()
        assert sum(hosts.counters(host).retransmits for host in range(HOSTS)) > 0
    assert output.count("done: ") == WORKERS and " is lost" not in output, output


@needs_hosts(rate_bits=1e8)
@with_and_without_failover
def test_short_outages_and_slow_links_end_nothing(failover: bool, tmp_path: Path) -> None:
    # However long the machine takes for an outage, it is shorter than the timeout.
    with running(tmp_path, failover, heartbeats=60) as (hosts, job):
        for host in (1, HOSTS - 1):  # that of a worker, and that of a server
            with outage(hosts, host):
                time.sleep(0.9)
            job.await_rounds(5)
        hosts.set_rate(2e6, [HOSTS - 1])
        job.await_rounds(3)
        hosts.set_rate(None, [HOSTS - 1])
        job.await_rounds(3)
        output = job.finish()
    assert output.count("done: ") == WORKERS and " is lost" not in output, output


@needs_hosts(rate_bits=1e8)
def test_a_server_whose_link_was_down_serves_again(tmp_path: Path) -> None:
    with running(tmp_path, failover=True) as (hosts, job):
        with outage(hosts, HOSTS - 1):
            job.wait(lambda: "server 0 stands in for it" in job.output)
            job.await_rounds(3)
        job.wait(lambda: "is replaced by the server at" in job.output)
        job.await_rounds(3)
        output = job.finish()
    assert output.count("done: ") == WORKERS, output
    assert output.count("; server 0 stands in for it") == 1, output


@needs_hosts(rate_bits=1e8)
def test_without_failover_a_server_whose_link_is_down_ends_the_job(tmp_path: Path) -> None:
    with running(tmp_path, failover=False) as (hosts, job):
        with outage(hosts, HOSTS - 1):
            output = job.finish()
        address = hosts.address(HOSTS - 1)
    assert len(re.findall(rf"lost .*{re.escape(address)}", output)) == WORKERS, output
