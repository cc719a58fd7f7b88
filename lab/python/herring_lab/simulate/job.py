"""Runs a whole job in virtual time: the real engines, credit and servers over a modelled network.

The code is that of real jobs, in one thread. The hosts' processors, links that serialize packets,
switch queues that drop packets, paths with delay, jitter and loss, and TCP are modelled. The same
scenario and seed give the same times. lab/docs/simulate.md lists the assumptions.
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
    """The processor time that the work of a loop takes, in seconds.

    Attributes:
      wakeup: the time until a sleeping loop runs, which also occupies the processor.
      call: a system call that reads or writes.
      byte_received: each byte read; on a server this includes its part of the sum.
      byte_sent: each byte written.
      packet: the system's work for each packet that is sent or received.
    """

    wakeup: float = 5e-6
    call: float = 1.5e-6
    byte_received: float = 0.12e-9
    byte_sent: float = 0.08e-9
    packet: float = 0.3e-6


@dataclass(frozen=True)
class PathModel:
    """The path of packets from one host to another, or along a link between two sites.

    Attributes:
      delay: seconds, one way.
      jitter: the longest random extra delay, in seconds, evenly distributed from 0; packets do not
        overtake each other.
      loss: probability that a packet is lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True)
class Change:
    """A new rate of a host's link, in bits per second and each way, from `at` seconds on."""

    at: float
    host: int
    rate: float


@dataclass(frozen=True)
class JobScenario:
    """A job and its network. Hosts are numbered: workers first, then dedicated servers.

    Attributes:
      nodes: the number of hosts with a worker each, at least 2.
      servers: the number of dedicated servers, each on a host of its own.
      size: bytes of the float32 array that is averaged.
      rate: bits per second of every host's link, each way; 0: no limit.
      rates: the rates of hosts whose link differs.
      queue: the depth of a link's queue, in seconds.
      path: the path between any two hosts that are not in `far`.
      far: paths to and from single hosts, by host.
      sites: links between two sites, as (bits per second, path). Hosts with even numbers are on one
        site, those with odd numbers on the other. Empty: all hosts are on one switch.
      mtu: bytes of the largest IP packet.
      changes: changes of links' rates while the job runs.
      cores: processors of each host, or of all hosts together with `shared_cores`; 0: unlimited.
      shared_cores: whether all hosts share the processors, as in a lab on one machine.
      costs: the processor time that loops take.
      pause: seconds between the end of a call and the program's next call.
      settings: settings of Herring by name ("credit", "flows", "proxies" ...); others have their
        defaults.
      data: whether contents are sent, and sums checked. Otherwise only headers are sent, which is
        faster.
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
        """The number of hosts."""
        return self.nodes + self.servers


@dataclass(frozen=True)
class JobRound:
    """One all-reduce.

    Attributes:
      began: when the round began, in seconds of virtual time.
      seconds: the time of the slowest rank, from its call to its result.
      credit: bytes that a flow might have outstanding at the end of the round.
    """

    began: float
    seconds: float
    credit: int


@dataclass(frozen=True)
class JobOutcome:
    """The results of a simulated job.

    Attributes:
      rounds: all rounds, in order.
      packets, retransmissions, timeouts: TCP's counters of the whole job.
      drops: packets that found no room in a queue.
      events: the number of events that were simulated.
    """

    rounds: tuple[JobRound, ...]
    packets: int
    retransmissions: int
    timeouts: int
    drops: int
    events: int

    def median(self, warmup: int = 5) -> float:
        """Returns the median seconds of the rounds after the first `warmup` rounds."""
        seconds = sorted(each.seconds for each in self.rounds[warmup:])
        if not seconds:
            raise ConfigurationError(
                f"warmup is {warmup}; it must be less than the number of rounds, {len(self.rounds)}"
            )
        middle = len(seconds) // 2
        return seconds[middle] if len(seconds) % 2 else (seconds[middle - 1] + seconds[middle]) / 2


def run(
    scenario: JobScenario, rounds: int = 25, seed: int = 1, patience: float = 3600.0
) -> JobOutcome:
    """Runs a job, which repeats a barrier and an all-reduce.

    Args:
      scenario: the job and its network.
      rounds: the number of repetitions.
      seed: the seed of lost packets and jitter.
      patience: the most seconds of virtual time that the job may take.

    Raises:
      ConfigurationError: a value is impossible; the error names it and what is allowed.
      TimeoutError: the rounds were not done within `patience`; the error says how many were.
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
