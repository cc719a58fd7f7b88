"""A whole job in virtual time: the real engines, credit and servers over a modelled network.

What runs is the code that real jobs run, in one thread; what is modelled are hosts' processors,
links that serialize packets, switch queues that drop them, paths with delay, jitter and loss, and
TCP. The same scenario and seed give the same times. lab/docs/simulate.md says what is assumed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from herring.errors import ConfigurationError
from herring_lab import _simulate
from herring_lab.simulate.limits import require_within

__all__ = ["Change", "JobCosts", "JobOutcome", "JobRound", "JobScenario", "PathModel", "run"]


@dataclass(frozen=True)
class JobCosts:
    """What the work of a loop takes of a processor, in seconds.

    Attributes:
      wakeup: until a sleeping loop runs, and what that takes of the processor.
      call: a system call that reads or writes.
      byte_received: each byte read, with its part of the sum where a server reads it.
      byte_sent: each byte written.
      packet: what the system does for each packet, sent or received.
    """

    wakeup: float = 5e-6
    call: float = 1.5e-6
    byte_received: float = 0.12e-9
    byte_sent: float = 0.08e-9
    packet: float = 0.3e-6


@dataclass(frozen=True)
class PathModel:
    """The way of packets from one host to another, or along a link between two sites.

    Attributes:
      delay: seconds, one way.
      jitter: seconds; up to so much more, evenly distributed; packets do not overtake each other.
      loss: probability that a packet is lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Change:
    """A host's link gets another rate in both directions: bits per second, `at` seconds."""

    at: float
    host: int
    rate: float


@dataclass(frozen=True)
class JobScenario:
    """A job and its network. Hosts are numbered: workers first, then dedicated servers.

    Attributes:
      nodes: hosts with a worker each, at least 2.
      servers: dedicated ones, each on a host of its own.
      size: bytes of the float32 array that is averaged.
      rate: bits per second of every host's link, each way; 0: no limit.
      rates: of hosts whose link differs.
      queue: seconds, how deep the queue of a link is.
      path: between any two hosts, but those to and from the hosts in `far`, which have their own.
      sites: links between two sites, on which hosts take turns (even and odd numbers): rate in bits
        per second and path of each. Empty: all hosts are on one switch.
      mtu: bytes of the largest IP packet.
      changes: of links' rates while the job runs.
      cores: processors of each host, or of all together with `shared_cores` (as in a lab on one
        machine); 0: nothing waits for one.
      pause: seconds between the end of a call and the program's next one.
      settings: of Herring, by name ("credit", "flows", "proxies" ...); the others have defaults.
      data: carry contents, and check the sums; without, only headers travel, which is faster.
    """

    nodes: int
    servers: int
    size: int
    rate: float = 0.0
    rates: Mapping[int, float] = field(default_factory=dict)
    queue: float = 0.02
    path: PathModel = PathModel()
    far: Mapping[int, PathModel] = field(default_factory=dict)
    sites: tuple[tuple[float, PathModel], ...] = ()
    mtu: int = 9000
    changes: tuple[Change, ...] = ()
    cores: int = 0
    shared_cores: bool = False
    costs: JobCosts = JobCosts()
    pause: float = 30e-6
    settings: Mapping[str, str] = field(default_factory=dict)
    data: bool = False

    @property
    def hosts(self) -> int:
        """How many hosts there are."""
        return self.nodes + self.servers


@dataclass(frozen=True)
class JobRound:
    """One all-reduce.

    Attributes:
      began: seconds of virtual time.
      seconds: of the rank that took longest, from its call.
      credit: bytes that a flow might have outstanding at its end.
    """

    began: float
    seconds: float
    credit: int


@dataclass(frozen=True)
class JobOutcome:
    """What a simulated job did.

    Attributes:
      rounds: in their order.
      packets, retransmissions, timeouts: of TCP, in the whole job.
      drops: packets for which there was no room in a queue.
      events: that the simulation went through.
    """

    rounds: tuple[JobRound, ...]
    packets: int
    retransmissions: int
    timeouts: int
    drops: int
    events: int

    def median(self, warmup: int = 5) -> float:
        """The median of the rounds after the first `warmup`, in seconds."""
        seconds = sorted(each.seconds for each in self.rounds[warmup:])
        if not seconds:
            raise ConfigurationError(
                f"warmup is {warmup}; it is less than the number of rounds, {len(self.rounds)}"
            )
        middle = len(seconds) // 2
        return seconds[middle] if len(seconds) % 2 else (seconds[middle - 1] + seconds[middle]) / 2


def run(
    scenario: JobScenario, rounds: int = 25, seed: int = 1, patience: float = 3600.0
) -> JobOutcome:
    """Runs a job: `rounds` times a barrier and an all-reduce.

    Args:
      scenario: the job and its network.
      rounds: how many.
      seed: of lost packets and jitter.
      patience: seconds of virtual time.

    Raises:
      ConfigurationError: a value is impossible; names it and what is allowed.
      TimeoutError: the rounds were not done within `patience`; says how far they came.
    """
    _check(scenario)
    require_within("rounds", rounds, 1, 10**6)
    require_within("seed", seed, 0, 2**63)
    require_within("patience", patience, 1e-6, 1e7)
    links = [(scenario.rates.get(host, scenario.rate), scenario.queue)
             for host in range(scenario.hosts)] * 2  # fmt: skip
    links += [(rate, scenario.queue) for rate, _ in scenario.sites for _ in range(2)]
    pairs = {}
    for host, path in scenario.far.items():
        for other in range(scenario.hosts):
            if other != host:
                pairs[host, other] = pairs[other, host] = dataclasses.astuple(path)
    found = _simulate.job(
        nodes=scenario.nodes,
        servers=scenario.servers,
        size=scenario.size,
        rounds=rounds,
        links=links,
        path=dataclasses.astuple(scenario.path),
        pairs=pairs,
        spines=[dataclasses.astuple(path) for _, path in scenario.sites],
        changes=[
            (each.at, link, each.rate, scenario.queue)
            for each in scenario.changes
            for link in (each.host, scenario.hosts + each.host)
        ],
        settings=dict(scenario.settings),
        mtu=scenario.mtu,
        cores=scenario.cores,
        shared_cores=scenario.shared_cores,
        costs=dataclasses.asdict(scenario.costs),
        pause=scenario.pause,
        data=scenario.data,
        seed=seed,
        patience=patience,
    )
    return JobOutcome(tuple(JobRound(*each) for each in found.pop("rounds")), **found)


def _check(scenario: JobScenario) -> None:
    require_within("nodes", scenario.nodes, 2, 4096)
    require_within("servers", scenario.servers, 0, 4096)
    require_within("size", scenario.size, 4, 10**11)
    require_within("queue", scenario.queue, 0, 100)
    require_within("mtu", scenario.mtu, 576, 65535)
    require_within("cores", scenario.cores, 0, 10**6)
    require_within("pause", scenario.pause, 0, 1000)
    for name, seconds in dataclasses.asdict(scenario.costs).items():
        require_within(f"costs.{name}", seconds, 0, 1)
    rates = {"rate": scenario.rate}
    rates |= {f"rates[{host}]": rate for host, rate in scenario.rates.items()}
    rates |= {f"sites[{i}]": rate for i, (rate, _) in enumerate(scenario.sites)}
    rates |= {f"changes[{i}].rate": each.rate for i, each in enumerate(scenario.changes)}
    for name, rate in rates.items():
        if rate != 0:
            require_within(name, rate, 1e4, 1e13)
    paths = {"path": scenario.path}
    paths |= {f"far[{host}]": path for host, path in scenario.far.items()}
    paths |= {f"sites[{i}]": path for i, (_, path) in enumerate(scenario.sites)}
    for name, path in paths.items():
        require_within(f"{name}.delay", path.delay, 0, 10)
        require_within(f"{name}.jitter", path.jitter, 0, 10)
        require_within(f"{name}.loss", path.loss, 0, 0.5)
    hosts = [*scenario.rates, *scenario.far, *(each.host for each in scenario.changes)]
    for host in hosts:
        if not 0 <= host < scenario.hosts:
            raise ConfigurationError(f"there is no host {host}: they are 0 to {scenario.hosts - 1}")
