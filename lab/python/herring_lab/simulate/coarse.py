"""The coarse model, which runs a job in virtual time window by window instead of packet by packet.

The model calls the real plan and the real credit controller. ``lab/docs/simulate.md`` lists what it
assumes about everything else. Equal hosts form a class, and a class of a thousand hosts costs as
much as a class of two, so that 100,000 workers take seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from herring_lab import _simulate

__all__ = ["Costs", "HostClass", "Outcome", "Round", "Scenario", "ServerClass", "fixed", "run"]


@dataclass(frozen=True)
class Costs:
    """The time that a host's processors take for its part in a job.

    Attributes:
      frame: seconds for each frame that is sent or received.
      byte: seconds for each byte of payload that is sent or received, sums included.
      wakeup: seconds from the arrival of a frame to its handling, and as much processor time.
      cores: processors that may work at the same time: at most one for each worker of a node, and
        one for each proxy of a server.
    """

    frame: float = 5e-6
    byte: float = 1e-10
    wakeup: float = 5e-6
    cores: float = 1.0


@dataclass(frozen=True)
class _Alike:
    count: int
    up: float = 100e9
    down: float = 100e9
    rtt: float = 25e-6
    buffer: float = 1e6
    loss: float = 0.0
    mtu: int = 9000
    background: float = 0.0
    costs: Costs = Costs()


@dataclass(frozen=True)
class HostClass(_Alike):
    """A class of equal nodes.

    Attributes:
      count: the number of nodes.
      up, down: bits per second of the link, away from the node and towards it.
      rtt: seconds of the round trip on the node's side. The whole round trip of a path is this
        plus the server's part.
      buffer: bytes that the switch port towards the node holds.
      loss: probability that a packet is lost on the node's link, each way.
      mtu: bytes of the largest IP packet.
      background: share of the link that other traffic takes, 0 to 0.95.
      costs: the costs of the node's processors.
      workers: workers on each node; the same for all classes of a scenario.
    """

    workers: int = 1


@dataclass(frozen=True)
class ServerClass(_Alike):
    """A class of equal servers.

    Attributes:
      count, up, down, rtt, buffer, loss, mtu, background, costs: the attributes of `HostClass`, for
        a server instead of a node.
      weight: the share of the bytes that each server gets, in any unit. 0: the share that
        ``plan::server_weights()`` gives; then all classes must have 0.
      colocated: whether a server runs on each node of class `host`; `count` must be the number of
        these nodes. Colocated servers share the links, ports and processors of their nodes, so up,
        down, buffer, loss, mtu, background and costs are those of the nodes.
      host: index of the class of nodes; ignored for dedicated servers.
    """

    weight: float = 0.0
    colocated: bool = False
    host: int = 0


@dataclass(frozen=True)
class Scenario:
    """A job: its hosts, what they average, and the settings that count.

    Attributes:
      hosts: classes of nodes.
      servers: classes of servers, dedicated servers first.
      size: bytes that every worker contributes in a round.
      pause: seconds between the end of a round and the start of the next.
      noise: the standard deviation of the pace, as a share of it. It stands for other processes,
        interrupts and arbitration, and is drawn independently for each stretch of 10 ms, or of a
        turn if that is longer.
      shared_cores: the number of processors that all hosts share, as in a lab on one machine; 0:
        each host has its own.
      segment_bytes, frame_max, credit_max, buffer_bytes: the settings of the same names, in bytes.
      credit: a fixed window for each flow, in bytes; 0: self-controlled.
    """

    hosts: tuple[HostClass, ...]
    servers: tuple[ServerClass, ...]
    size: int
    pause: float = 0.0
    noise: float = 0.01
    shared_cores: float = 0.0
    segment_bytes: int = 8192
    frame_max: int = 256 << 10
    credit_max: int = 1 << 20
    buffer_bytes: int = 0
    credit: int = 0


@dataclass(frozen=True)
class Round:
    """One all-reduce.

    Attributes:
      seconds: from the first push to the last result.
      goodput: bytes per second: `Scenario.size` divided by `seconds`.
      window: bytes that a flow might have outstanding at the end of the round.
      bound: what took the time: ``"link"``, ``"processor"``, ``"latency"`` (the window is smaller
        than the path) or ``"loss"`` (recoveries and timeouts).
      losses: packets that the whole job lost in the round.
      timeouts: retransmission timeouts that held up a server.
    """

    seconds: float
    goodput: float
    window: int
    bound: str
    losses: int
    timeouts: int


@dataclass(frozen=True)
class Outcome:
    """The results of a scenario.

    Attributes:
      rounds: one entry for each all-reduce.
      limit: the least seconds of a round that the links' rates allow, counting payload alone.
      wire_limit: the same limit with the packets' headers.
      steps: the number of steps of the model, a measure of its cost.
    """

    rounds: tuple[Round, ...]
    limit: float
    wire_limit: float
    steps: int

    @property
    def goodput(self) -> float:
        """Bytes per second over all rounds, without pauses."""
        return sum(r.seconds * r.goodput for r in self.rounds) / sum(r.seconds for r in self.rounds)

    @property
    def median(self) -> float:
        """Median seconds of a round."""
        times = sorted(r.seconds for r in self.rounds)
        middle = len(times) // 2
        return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


def run(scenario: Scenario, rounds: int = 25, seed: int = 1, least: float = 0.0) -> Outcome:
    """Runs a job in virtual time; the same arguments give the same outcome.

    Args:
      scenario: the job.
      rounds: the least number of all-reduces.
      seed: the seed of losses and noise.
      least: the least virtual time of the run, in seconds; the run ends with a whole round.

    Raises:
      InvalidArgumentError: a value is impossible; the error names it and what is allowed.
      ConfigurationError: a setting is impossible, or values contradict each other.
    """
    found = _simulate.coarse(dataclasses.asdict(scenario), rounds, seed, least)
    return Outcome(
        rounds=tuple(Round(*each) for each in found["rounds"]),
        limit=found["limit"],
        wire_limit=found["wire_limit"],
        steps=found["steps"],
    )


def fixed(scenario: Scenario, segments: int) -> Scenario:
    """Returns the scenario with a fixed window of `segments` segments for each flow."""
    return dataclasses.replace(scenario, credit=segments * scenario.segment_bytes)
