"""Measures one point of a study on emulated hosts, and a ping-pong between two hosts."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from herring.base.units import counted
from herring_lab.emulate import folders
from herring_lab.emulate.cluster import BURST_BYTES, Cluster, ClusterError
from herring_lab.emulate.mpi import MPIS
from herring_lab.emulate.runner import Plan, run

_TIMEOUT = 600.0  # seconds that a point may take
# GPUs of one machine could otherwise reach each other without the emulated links.
_NCCL = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1"}

_PING_PONG = """
import socket, sys, time
own, peer, sizes = sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3].split(",")]
refill = float(sys.argv[4])
def whole(connection, view):
    while view:
        view = view[connection.recv_into(view):]
if not peer:
    listener = socket.create_server((own, 29380)); print("ready", flush=True)
    connection, _ = listener.accept()
else:
    connection = socket.create_connection((peer, 29380), 10)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for size in sizes:
    data, times = bytearray(size), []
    for turn in range(4 if size >= 1 << 20 else 12):
        if peer:
            time.sleep(refill)  # each message meets token buckets that are full
        start = time.monotonic()
        if peer:
            connection.sendall(data); whole(connection, memoryview(data))
        else:
            whole(connection, memoryview(data)); connection.sendall(data)
        times.append(time.monotonic() - start)
    if peer:
        print(size, sorted(times)[len(times) // 2] / 2, flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Network:
    """The network between the hosts; see `herring_lab.emulate.Cluster`.

    Attributes:
      rate_bits: rate of every link in bits per second, in each direction.
      queue_seconds: depth of the switch's queues, in seconds.
      paths: rates of the spines in bits per second; empty: one switch.
      rates: rates of single hosts' links, where they differ; workers' hosts come first.
      delay: one-way delay between any two hosts, in seconds.
      loss: probability that a packet is lost.
      strict: whether links are strict; None: if there is a delay or loss.
    """

    rate_bits: float = 200e6
    queue_seconds: float = 0.020
    paths: tuple[float, ...] = ()
    rates: Mapping[int, float] = dataclasses.field(default_factory=dict)
    delay: float = 0.0
    loss: float = 0.0
    strict: bool | None = None

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a link, in each direction."""
        return self.rate_bits / 8

    def cluster(self, hosts: int) -> Cluster:
        """Makes a cluster of `hosts` hosts with this network."""
        return Cluster(
            hosts,
            self.rate_bits,
            self.queue_seconds,
            rates=self.rates,
            paths=self.paths,
            delay=self.delay,
            loss=self.loss,
            strict=self.strict,
        )


@dataclasses.dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes:
      workers: the number of hosts with a worker each.
      servers: the number of hosts with a dedicated server each.
      size: bytes of the array.
      library: ``herring``, or one of ``herring_lab.competitors.PEERS``.
      algorithm: the algorithm of the all-reduce; None: the library chooses.
      operation: the operation of the benchmark; only Herring has ``planned`` and ``variables``.
      dtype: the type of the array.
      settings: environment variables of Herring that are not at their default.
    """

    workers: int
    servers: int
    size: int
    library: str = "herring"
    algorithm: str | None = None
    operation: str = "allreduce"
    dtype: str = "float32"
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def mpi(self) -> str:
        """The MPI whose launcher starts the workers; empty if the lab starts them."""
        if (self.library, self.algorithm) == ("horovod", "mpi"):
            return "openmpi"
        return self.library if self.library in MPIS else ""

    def __str__(self) -> str:
        """Returns the point in words, for messages."""
        library = f"{self.library} ({self.algorithm})" if self.algorithm else self.library
        text = (
            f"{self.operation} of {self.size:,} bytes of {self.dtype} by {library} with "
            f"{counted(self.workers, 'worker')} and {counted(self.servers, 'server')}"
        )
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{text} ({settings})" if settings else text


def measure(network: Network, point: Point, iterations: int, warmup: int = 2) -> dict[str, Any]:
    """Measures a point.

    Returns:
      The benchmark's result (``p50_seconds`` and others), with three more entries. ``drops`` and
      ``retransmits`` count the whole network. ``server_bytes`` are the most bytes that a dedicated
      server's link carried in a direction per iteration, headers included.

    Raises:
      ClusterError: the job failed; the message ends with the job's last output.
      LateLinksError: strict links did not keep to their model, so there is no figure.
    """
    with folders.temporary("study") as directory:
        result, log = pathlib.Path(directory, "result.json"), pathlib.Path(directory, "log")
        command = [sys.executable, "-m", "herring.bench", point.operation]
        command += ["--sizes", str(point.size), "--dtype", point.dtype, "--op", "sum"]
        command += ["--iterations", str(iterations), "--warmup", str(warmup), "--check"]
        command += ["--json", str(result)]
        if point.operation == "allreduce":
            command += ["--peer", point.library]
            command += ["--algorithm", point.algorithm] if point.algorithm else []
        plan = Plan(
            command,
            point.workers,
            point.servers,
            timeout=_TIMEOUT,
            settings={**(_NCCL if point.library == "nccl" else {}), **point.settings},
            mpi=point.mpi,
        )
        with network.cluster(plan.hosts) as cluster, log.open("wb") as output:
            cluster.link_report(reset=True)
            status = run(cluster, plan, output.fileno())
            if status == 0:
                cluster.require_on_time()
            counters = cluster.total()
            servers = [cluster.counters(host) for host in range(plan.worker_hosts, plan.hosts)]
        if status != 0:
            raise ClusterError(f"{point} ended with status {status}: {log.read_text()[-1500:]}")
        found = json.loads(result.read_text())["results"][0]
    if found["wrong"]:
        raise ClusterError(f"{point}: {found['wrong']} wrong elements")
    busiest = max((max(one.sent_bytes, one.received_bytes) for one in servers), default=0)
    return {
        **found,
        "drops": counters.switch_drops,
        "retransmits": counters.retransmits,
        "server_bytes": busiest / (warmup + iterations),
    }


def ping_pong(network: Network, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Returns (bytes, seconds one way) for messages between two hosts over one TCP connection."""
    with network.cluster(2) as cluster:
        listing = ",".join(map(str, sizes))
        refill = str(min(2 * BURST_BYTES / network.bandwidth, 1.0))
        base = [sys.executable, "-S", "-c", _PING_PONG]
        pipe = {"stdout": subprocess.PIPE, "text": True}
        job = cluster.popen(1, [*base, cluster.address(1), "", listing, refill], **pipe)
        if job.process.stdout.readline() != "ready\n":
            raise ClusterError("the other side of the ping-pong did not start")
        output = cluster.run(0, [*base, cluster.address(0), cluster.address(1), listing, refill])
        job.process.wait(30)
    return [(int(size), float(time)) for size, time in map(str.split, output.splitlines())]
