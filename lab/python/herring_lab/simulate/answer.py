"""What a user wants to know about a job on a network: step time, efficiency, cost, servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from herring import models
from herring.errors import ConfigurationError
from herring_lab.simulate import coarse
from herring_lab.simulate.catalogue import Gradient
from herring_lab.simulate.network import PEERS, Herring, Network, peer_seconds
from herring_lab.simulate.options import DTYPES
from herring_lab.simulate.timeline import (
    Buffer,
    Stages,
    Timeline,
    fuse,
    fuse_evenly,
    play,
)

__all__ = ["Answer", "Best", "Job", "Prices", "answer", "best_servers", "peer_step", "peer_steps"]

# Buffers that all-reduces are given to choose from besides Herring's: what torch's
# DistributedDataParallel and Horovod take by default, and all gradients at once after the backward
# pass.
_PEER_BUFFERS = (25 * 2**20, 64 * 2**20, float("inf"))
_HIDDEN = 0.005  # of a step: what is exposed does not count
_WAITED = 0.05  # of what is exposed
_BUFFERS = 8  # times as much, or as little, in switch ports
_MOSTLY = 0.8  # of a round is the links' own time: what is lost beside it does not bind
_AS_GOOD = 1.01  # as the best: fewer servers will do


@dataclasses.dataclass(frozen=True)
class Job:
    """What is trained.

    Attributes:
      name: of the model, for people.
      gradients: in order of production.
      step: seconds of forward and backward pass; 0: gradients are there at once.
      backward: the backward pass as a part of that.
      dtype: of the gradients.
      wire_dtype: that they are sent in.

    Raises:
      ConfigurationError: a value is impossible; names it and what is allowed.
    """

    name: str
    gradients: tuple[Gradient, ...]
    step: float
    backward: float
    dtype: str = "float32"
    wire_dtype: str = "float32"

    def __post_init__(self) -> None:
        if not 0 <= self.step <= 1e5:
            raise ConfigurationError(f"--step is {self.step:g} s; it is from 0 to 100000 s")
        if not 0 < self.backward <= 1:
            raise ConfigurationError(f"--backward is {self.backward:g}; it is above 0, at most 1")
        if DTYPES[self.wire_dtype] > DTYPES[self.dtype] or (
            self.wire_dtype != self.dtype and DTYPES[self.wire_dtype] == DTYPES[self.dtype]
        ):
            raise ConfigurationError(
                f"--wire-dtype {self.wire_dtype} with --dtype {self.dtype}: only float32 can be "
                "sent in another type, float16 or bfloat16"
            )

    @property
    def elements(self) -> int:
        """Of all gradients."""
        return sum(each.elements for each in self.gradients)

    @property
    def size(self) -> int:
        """Bytes of all gradients on the wire."""
        return self.elements * DTYPES[self.wire_dtype]


@dataclasses.dataclass(frozen=True)
class Prices:
    """Per hour, in any currency.

    Attributes:
      node: of a node with its workers.
      server: of a dedicated server.
    """

    node: float
    server: float

    def of_step(self, network: Network, seconds: float) -> float:
        """What a step costs."""
        per_hour = network.nodes * self.node + network.servers * self.server
        return per_hour * seconds / 3600


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is said about a job on a network.

    Attributes:
      network: that was asked about.
      job: that runs on it.
      timeline: of a step.
      buffers: of Herring's plan.
      herring: what averaging takes; None: a single node has nothing to send.
      limit: seconds of averaging that the links' rates allow at best.
      limit_step: seconds of a step if only links and what a node does inside took time.
      binds: what lengthens the step, or would if there were more of it.
      node_bytes: that a node sends in a step, and as many it receives; headers not counted.
    """

    network: Network
    job: Job
    timeline: Timeline
    buffers: tuple[Buffer, ...]
    herring: Herring | None
    limit: float
    limit_step: float
    binds: str
    node_bytes: float

    @property
    def efficiency(self) -> float | None:
        """The step without communication over the step; None: there is nothing to compute."""
        return self.job.step / self.timeline.seconds if self.job.step > 0 else None

    @property
    def least_outstanding(self) -> float:
        """Bytes towards the busiest server with the smallest credit: a segment of every node."""
        if self.network.nodes == 1:
            return 0.0
        share = max(models.shares(self.network.nodes, self.network.servers))
        return self.network.nodes * min(coarse.Scenario.segment_bytes, share * self.buffers[0].size)


@dataclasses.dataclass(frozen=True)
class Best:
    """How many dedicated servers to take.

    Attributes:
      tried: answers for numbers of servers, in ascending order.
      by_time: the fewest that bring the shortest step, to a percent: the noise.
      by_cost: those with the cheapest step; None: without prices.
      peers: seconds of a step with each of `PEERS`, models.
      shallow, deep: the answer that was asked for, if switch ports held an eighth, or eight times
        as much: that is seldom known; None: a single node has no port.
    """

    tried: tuple[Answer, ...]
    by_time: Answer
    by_cost: Answer | None
    peers: dict[str, float]
    shallow: Answer | None = None
    deep: Answer | None = None


def answer(job: Job, network: Network) -> Answer:
    """Says what a step of a job takes on a network.

    Raises:
      ConfigurationError, InvalidArgumentError: the coarse model refuses a value; names it.
    """
    made = fuse(
        *(job.gradients, job.dtype, job.wire_dtype),
        *(network.nodes, network.servers, job.step, job.backward),
    )
    buffers = tuple(made)
    node = 1 / network.node_rate if network.workers > 1 else 0.0
    if network.nodes == 1:
        timeline = play(buffers, Stages(node, 0.0), job.step)
        binds = _binding(job, timeline, None, network)
        return Answer(network, job, timeline, buffers, None, 0.0, timeline.seconds, binds, 0.0)
    herring = Herring.on(network, job.size, buffers[0].size)
    pace = herring.seconds_per_byte
    timeline = play(
        buffers, Stages(node, pace, latency=herring.latency + network.lateness), job.step
    )
    at_best = play(buffers, Stages(node, herring.limit / job.size), job.step)
    return Answer(
        network,
        job,
        timeline,
        buffers,
        herring,
        herring.limit,
        at_best.seconds,
        _binding(job, timeline, herring, network),
        models.wire("herring", network.nodes, job.size, network.servers).busiest_bytes,
    )


def _binding(job: Job, timeline: Timeline, herring: Herring | None, network: Network) -> str:
    if job.step > 0 and timeline.exposed <= _HIDDEN * job.step:
        return "computing"
    if herring is None or timeline.node > timeline.network:
        return "node"
    if job.step > 0 and timeline.backlog <= _WAITED * timeline.exposed:
        return "last gradient"
    if herring.bound == "link" or herring.limit * herring.headers > _MOSTLY * herring.seconds:
        dedicated, _ = models.shares(network.nodes, network.servers)
        on_server = network.nodes * dedicated / network.server_rate
        on_node = models.wire("herring", network.nodes, 1.0, network.servers).busiest_bytes
        return "servers' link" if on_server > 1.001 * on_node / network.rate else "link"
    return herring.bound


def peer_step(name: str, job: Job, network: Network, headers: float) -> float:
    """How long a step takes with one of `PEERS`: a model, with the buffers that suit it best.

    Args:
      name: of the algorithm.
      job: that runs.
      network: whose servers do not count.
      headers: bytes on the wire over bytes of gradients.

    Returns:
      Seconds.
    """
    start = peer_seconds(name, network, 0, headers)
    pace = (peer_seconds(name, network, job.size, headers) - start) / job.size
    # Between workers of a node a flat ring takes links of its own.
    own = network.workers > 1 and name != "ring"
    stages = Stages(1 / network.node_rate if own else 0.0, pace, start, network.lateness)
    itemsize = DTYPES[job.wire_dtype]
    return min(
        play(
            fuse_evenly(job.gradients, itemsize, size, job.step, job.backward), stages, job.step
        ).seconds
        for size in _PEER_BUFFERS
    )


def peer_steps(found: Answer) -> dict[str, float]:
    """Returns how long steps take with each of `PEERS` on the network of an answer."""
    headers = found.herring.headers if found.herring else 1.0
    return {name: peer_step(name, found.job, found.network, headers) for name in PEERS}


def best_servers(
    job: Job,
    network: Network,
    prices: Prices | None,
    report: Callable[[int, int, str], None],
) -> Best:
    """Tries numbers of dedicated servers: by eighths of the nodes, beyond them a few, those given.

    Args:
      job: that runs.
      network: with any number of servers.
      prices: to find the cheapest; None: not.
      report: told about each number before it is tried, as (done, all, what).

    Raises:
      ConfigurationError, InvalidArgumentError: as `answer`.
    """
    most = network.most_servers
    found = {network.servers, *(round(most * part / 8) for part in (5, 6, 8))}
    for whole in (network.nodes, most // 2):
        found |= {round(whole * part / 8) for part in range(9)}
    numbers = sorted(found)
    tried = []
    for index, number in enumerate(numbers):
        report(index, len(numbers), f"{number} servers")
        tried.append(answer(job, network.with_servers(number)))
    shallow, deep = None, None
    if network.nodes > 1:
        less = max(network.buffer / _BUFFERS, network.mtu)
        shallow = answer(job, dataclasses.replace(network, buffer=less))
        deep = answer(job, dataclasses.replace(network, buffer=network.buffer * _BUFFERS))
    peers = peer_steps(next(each for each in tried if each.network.servers == network.servers))
    return Best(tuple(tried), _fewest(tried), _cheapest(tried, prices), peers, shallow, deep)


def _fewest(tried: Sequence[Answer]) -> Answer:
    shortest = min(each.timeline.seconds for each in tried)
    return next(each for each in tried if each.timeline.seconds <= _AS_GOOD * shortest)


def _cheapest(tried: Sequence[Answer], prices: Prices | None) -> Answer | None:
    if prices is None:
        return None
    return min(tried, key=lambda each: prices.of_step(each.network, each.timeline.seconds))
