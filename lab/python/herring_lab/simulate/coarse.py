"""The coarse model: a job in virtual time, window by window instead of packet by packet.

It calls the real plan and the real credit controller; what it assumes of everything else is in
``lab/docs/simulate.md``. Hosts that are alike form a class, and a class of a thousand hosts costs
as much as one of two: 100,000 workers take seconds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from herring_lab import _simulate

__all__ = ["Costs", "HostClass", "Outcome", "Round", "Scenario", "ServerClass", "fixed", "run"]


@dataclass(frozen=True)
class Costs:
    """What a host's processors take for its part in a job.

    Attributes:
      frame: seconds for each frame that is sent or received.
      byte: seconds for each byte of payload that is sent or received, sums included.
      wakeup: seconds from the arrival of a frame to its handling, and as much processor time.
      cores: processors that may work on it at the same time: at most one for each worker of a
        node, one for each proxy of a server.
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
    """Nodes that are alike.

    Attributes:
      count: how many.
      up, down: bits per second of the link, away from the node and towards it.
      rtt: seconds, the part of the round trip on the node's side: a path's whole round trip is
        this plus the server's.
      buffer: bytes that the switch port towards the node holds.
      loss: probability that a packet is lost on the node's link, each way.
      mtu: bytes of the largest IP packet.
      background: share of the link that other traffic takes, 0 to 0.95.
      costs: of the node's processors.
      workers: workers on each; the same for all classes of a scenario.
    """

    workers: int = 1


@dataclass(frozen=True)
class ServerClass(_Alike):
    """Servers that are alike.

    Attributes:
      count, up, down, rtt, buffer, loss, mtu, background, costs: as of `HostClass`.
      weight: share of the bytes of each, in any unit; 0: as ``plan::server_weights()`` has it,
        which must then hold for all classes.
      colocated: they run on the first `count` nodes of class number `host` and share their links,
        ports and processors: up, down, buffer, loss, mtu, background and costs are those of the
        nodes. Of class `host` there must be `count` nodes.
      host: index of that class; ignored for dedicated servers.
    """

    weight: float = 0.0
    colocated: bool = False
    host: int = 0


@dataclass(frozen=True)
class Scenario:
    """A job: its hosts, what they average, and the settings that count.

    Attributes:
      hosts: classes of nodes.
      servers: classes of servers, dedicated ones first.
      size: bytes that every worker contributes in a round.
      pause: seconds between the end of a round and the begin of the next.
      noise: standard deviation of the pace, a share of it, independently in each stretch of 10 ms
        (or of a turn, where that is longer): other processes, interrupts, arbitration.
      shared_cores: processors that all hosts together run on, as in a lab on one machine; 0: each
        has its own.
      segment_bytes, frame_max, credit_max, buffer_bytes: bytes, the settings of the same names.
      credit: bytes, a fixed window for each flow; 0: self-controlled.
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
      goodput: bytes per second: `Scenario.size` over `seconds`.
      window: bytes that a flow might have outstanding at its end.
      bound: what took the time: ``"link"``, ``"processor"``, ``"latency"`` (the window is smaller
        than the path) or ``"loss"`` (recoveries and time-outs).
      losses: packets lost in it, in the whole job.
      timeouts: retransmission time-outs that held up a server.
    """

    seconds: float
    goodput: float
    window: int
    bound: str
    losses: int
    timeouts: int


@dataclass(frozen=True)
class Outcome:
    """What came of a scenario.

    Attributes:
      rounds: one for each all-reduce.
      limit: seconds that a round takes at least by the links' rates, payload alone.
      wire_limit: the same with the packets' headers.
      steps: steps of the model, a measure of its cost.
    """

    rounds: tuple[Round, ...]
    limit: float
    wire_limit: float
    steps: int

    @property
    def goodput(self) -> float:
        """Bytes per second over all rounds, pauses left out."""
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
      rounds: how many all-reduces, at least.
      seed: of losses and noise.
      least: seconds of virtual time that it runs at least, in whole rounds.

    Raises:
      InvalidArgumentError: a value is impossible; names it and says what is allowed.
      ConfigurationError: a setting is, or values contradict each other.
    """
    found = _simulate.coarse(dataclasses.asdict(scenario), rounds, seed, least)
    return Outcome(
        rounds=tuple(Round(*each) for each in found["rounds"]),
        limit=found["limit"],
        wire_limit=found["wire_limit"],
        steps=found["steps"],
    )


def fixed(scenario: Scenario, segments: int) -> Scenario:
    """Returns the scenario with a fixed window of so many segments for each flow."""
    return dataclasses.replace(scenario, credit=segments * scenario.segment_bytes)
