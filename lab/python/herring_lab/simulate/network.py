"""Describes hosts and links, and computes what averaging costs on them.

`Network` holds what the options of ``herring simulate`` say. `Herring.on` runs the coarse model on
a network. `peer_seconds` models classic all-reduces under the same assumptions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib

from herring.bench import models
from herring.errors import ConfigurationError
from herring_lab.simulate import coarse
from herring_lab.simulate.coarse import Costs
from herring_lab.simulate.limits import require_within

#: All-reduces to compare with. The ring runs over all workers. The others run between nodes, after
#: the workers of each node have summed their arrays; "hierarchical" is a ring of nodes.
PEERS = ("ring", "butterfly", "tree", "hierarchical")

_NODES_PER_PROXY = 8  # docs/extend/internals.md
_MOST_PROXIES = 16
# The model runs at least so many rounds and seconds. Only the last rounds count, because the
# controller has then found its window.
_ROUNDS, _SECONDS = 25, 5.0
_LAST = 10
#: Processor costs from docs/benchmarks.md, "Where the time goes". A worker or a server sends and
#: receives 100 MB in frames of 256 KiB, on two processors, over TCP in the kernel. Copies, TCP/IP
#: and sums take 52 to 60 ms for 200 MB. Herring and Python take 4 ms for 780 frames. Waking and
#: switching threads takes 13 to 15 ms for the 390 frames that are received.
MEASURED = Costs(frame=5e-6, byte=2.8e-10, wakeup=35e-6, cores=0.0)
_COSTS = tuple(field.name for field in dataclasses.fields(Costs))


@dataclasses.dataclass(frozen=True)
class Network:
    """Nodes, servers, and the network between them.

    Attributes:
      nodes: the number of machines with workers.
      workers: workers per node, one per accelerator.
      servers: the number of dedicated servers, each on a host of its own. With fewer servers than
        nodes, each node also has a colocated server.
      rate: bits per second of a node's link, in each direction.
      server_rate: bits per second of a dedicated server's link, in each direction.
      rtt: seconds of a round trip between a worker and a server, without queueing.
      loss: probability that a packet is lost at random.
      buffer: bytes that the switch holds for each port. Default: half of what a switch of 32 ports
        of 100 Gbit/s has for all of them (32 MB in Broadcom's Trident 3).
      mtu: bytes of a packet.
      node_rate: bytes per second, each way, at which the workers of a node together sum a buffer
        and copy its result back.
      late: extra delay of the slowest node, in seconds, each time the node count doubles; see
        `lateness`.
      proxies: proxies of each server; 0: one for every 8 nodes, at most 16. (A real server derives
        the number from the rate of its link.)
      costs: the costs of a host's processors; `cores` of 0: one core per worker, and per proxy of a
        server.
      noise: the standard deviation of the pace, see `coarse.Scenario`.
      seed: the seed of losses and noise.

    Raises:
      ConfigurationError: a value is impossible; the error names it and what is allowed.
    """

    nodes: int
    workers: int = 1
    servers: int = 0
    rate: float = 100e9
    server_rate: float = 100e9
    rtt: float = 50e-6
    loss: float = 0.0
    buffer: float = 16e6
    mtu: int = 9000
    node_rate: float = 48e9
    late: float = 0.0
    proxies: int = 0
    costs: Costs = dataclasses.field(default_factory=lambda: MEASURED)
    noise: float = 0.01
    seed: int = 1

    def __post_init__(self) -> None:
        require_within("--nodes", self.nodes, 1, 100_000)
        require_within("--gpus-per-node", self.workers, 1, 64)
        require_within("--rate", self.rate, 1e6, 1e13, "bit/s")
        require_within("--server-rate", self.server_rate, 1e6, 1e13, "bit/s")
        require_within("--rtt", self.rtt, 0, 10, "s")
        if not 0 <= self.loss <= 0.1:
            raise ConfigurationError(f"--loss is {100 * self.loss:g}%; it must be from 0% to 10%")
        require_within("--mtu", self.mtu, 576, 65521, "bytes")
        require_within("--buffer", self.buffer, self.mtu, 1e12, "bytes")
        require_within("--node-rate", self.node_rate, 1e6, 1e15, "bytes/s")
        require_within("--proxies", self.proxies, 0, 1024)
        require_within("--late", self.late, 0, 1e3, "s")
        if not 0 <= self.servers <= self.most_servers:
            raise ConfigurationError(
                f"--servers is {self.servers}; it must be from 0 to {self.most_servers}: "
                "links gain nothing from more servers than the nodes' links fill, processors little"
            )

    @property
    def most_servers(self) -> int:
        """Twice the number of servers from which on their links are less busy than the nodes'."""
        return 2 * math.ceil(self.nodes * max(1.0, self.rate / self.server_rate))

    @property
    def bandwidth(self) -> float:
        """Bytes per second of a node's link, in each direction."""
        return self.rate / 8

    @property
    def lateness(self) -> float:
        """Seconds for which an average waits for the slowest node, see `models.lateness`."""
        return models.lateness(self.nodes, self.late)

    @property
    def server_threads(self) -> int:
        """The number of proxies of each server, each with a core of its own."""
        return self.proxies or min(-(-self.nodes // _NODES_PER_PROXY), _MOST_PROXIES)

    @property
    def node_costs(self) -> Costs:
        """The costs of a node's processors, which run its workers and a colocated server."""
        threads = self.workers + (self.server_threads if self.servers < self.nodes else 0)
        return dataclasses.replace(self.costs, cores=self.costs.cores or float(threads))

    @property
    def server_costs(self) -> Costs:
        """The costs of a dedicated server's processors."""
        return dataclasses.replace(self.costs, cores=self.costs.cores or float(self.server_threads))

    def with_servers(self, servers: int) -> Network:
        """Returns the same network with another number of dedicated servers."""
        return dataclasses.replace(self, servers=servers)

    def scenario(self, size: int, buffer_bytes: int) -> coarse.Scenario:
        """Returns the scenario of this network for the coarse model.

        Args:
          size: bytes that each node averages in a round.
          buffer_bytes: bytes of a fusion buffer on the wire.
        """
        path = {"buffer": self.buffer, "loss": self.loss, "mtu": self.mtu, "rtt": self.rtt / 2}
        link = {"up": self.rate, "down": self.rate, **path}
        hosts = coarse.HostClass(self.nodes, workers=self.workers, costs=self.node_costs, **link)
        servers = []
        if self.servers > 0:
            own = {**link, "up": self.server_rate, "down": self.server_rate}
            servers.append(coarse.ServerClass(self.servers, costs=self.server_costs, **own))
        if self.servers < self.nodes:
            servers.append(
                coarse.ServerClass(self.nodes, colocated=True, costs=self.node_costs, **link)
            )
        return coarse.Scenario(
            (hosts,), tuple(servers), size, noise=self.noise, buffer_bytes=buffer_bytes
        )


@dataclasses.dataclass(frozen=True)
class Herring:
    """The time of averaging through servers: ``latency + seconds_per_byte * bytes``.

    Attributes:
      latency: seconds from the last byte of a buffer to its result.
      seconds_per_byte: the pace that the controller's window reaches.
      seconds: seconds of a whole round.
      limit: the least seconds of a round that the links' rates allow, without headers.
      headers: bytes on the wire divided by bytes of gradients.
      bound: what took the time in most rounds; a value of `coarse.Round.bound`.
      window: bytes that a flow may have outstanding.
    """

    latency: float
    seconds_per_byte: float
    seconds: float
    limit: float
    headers: float
    bound: str
    window: int

    @staticmethod
    @functools.cache
    def on(network: Network, size: int, buffer_bytes: int) -> Herring:
        """Runs the coarse model with self-controlled credit, then with a single buffer.

        Args:
          network: the network, with at least two nodes.
          size: bytes of a round on the wire.
          buffer_bytes: bytes of a fusion buffer on the wire.

        Raises:
          ConfigurationError, InvalidArgumentError: the model refuses a value and names it.
        """
        scenario = network.scenario(size, buffer_bytes)
        outcome = coarse.run(scenario, _ROUNDS, network.seed, _SECONDS)
        last = outcome.rounds[-_LAST:]
        seconds = sorted(each.seconds for each in last)[len(last) // 2]
        bounds = [each.bound for each in last]
        window = last[-1].window
        latency = network.rtt
        if size > buffer_bytes:
            # What a buffer costs beyond its share of a round is the latency of the way and back.
            alone = dataclasses.replace(scenario, size=buffer_bytes, credit=window)
            one = coarse.run(alone, _LAST, network.seed).median
            pace = max((seconds - one) / (size - buffer_bytes), outcome.limit / size)
            latency = max(seconds - pace * size, latency)
        latency = min(latency, seconds)
        return Herring(
            latency=latency,
            seconds_per_byte=(seconds - latency) / size,
            seconds=seconds,
            limit=outcome.limit,
            headers=outcome.wire_limit / outcome.limit,
            bound=max(set(bounds), key=bounds.count),
            window=window,
        )


def peer_seconds(name: str, network: Network, size: float, headers: float) -> float:
    """Models one of `PEERS` between nodes; the stages inside a node come on top.

    The model is that of `herring.models`. Its rate is that of the links without headers, or what a
    node's processors manage (with frames of 256 KiB) if that is less. Each message takes half a
    round trip and a wake-up. Losses and full switch buffers are left out.

    Args:
      name: the algorithm.
      network: the network; its servers do not count.
      size: bytes of the array.
      headers: bytes on the wire divided by bytes of payload.

    Returns:
      Seconds.
    """
    costs = network.costs
    frame = coarse.Scenario.frame_max
    # For each byte of the array a node sends one byte and receives one byte.
    processor = 2 * (costs.byte + costs.frame / frame) / (costs.cores or network.workers)
    pace = max(headers / network.bandwidth, processor)
    latency = network.rtt / 2 + costs.wakeup
    hosts = network.nodes * network.workers if name == "ring" else network.nodes
    algorithm = "ring" if name == "hierarchical" else name
    return models.time(algorithm, hosts, size, 1 / pace, latency) if network.nodes > 1 else 0.0


def load_costs(path: str) -> tuple[Costs, str]:
    """Reads measured costs from a JSON object with some of the names of `Costs`.

    Returns:
      The costs, with the values of `MEASURED` for names that the file lacks, and the text "source"
      of the file, which tells where the costs are from.

    Raises:
      ConfigurationError: the file cannot be read or holds anything else; the error names the file.
    """
    file = pathlib.Path(path)
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"--costs {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"--costs {path} is not JSON: {error}") from None
    allowed = f"seconds or numbers named {', '.join(_COSTS)}, and a text named source"
    if not isinstance(document, dict) or set(document) - {*_COSTS, "source"}:
        raise ConfigurationError(f"--costs {path}: write {allowed}")
    values = {name: document[name] for name in _COSTS if name in document}
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < 1e6:
            raise ConfigurationError(f"--costs {path}: {name} is {value!r}; write a number above 0")
    return dataclasses.replace(MEASURED, **values), str(document.get("source", path))
