"""Answers questions about a job on a network: step time, efficiency, cost, best servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from herring.bench import models
from herring.errors import ConfigurationError
from herring_lab.simulate import coarse
from herring_lab.simulate.catalogue import Gradient
from herring_lab.simulate.network import PEERS, Herring, Network, peer_seconds
from herring_lab.simulate.options import DTYPES, WIRE_DTYPES
from herring_lab.simulate.timeline import (
    Buffer,
    Stages,
    Timeline,
    fuse,
    fuse_evenly,
    play,
)

# Buffer sizes that libraries with classic all-reduces use: the defaults of torch's
# DistributedDataParallel and of Horovod, and all gradients at once after the backward pass.
_PEER_BUFFERS = (25 * 2**20, 64 * 2**20, float("inf"))
_HIDDEN = 0.005  # part of a step: less exposed time than this counts as hidden
_WAITED = 0.05  # part of the exposed time: a smaller backlog does not bind
_BUFFERS = 8  # factor for deeper and shallower switch ports
_MOSTLY = 0.8  # part of a round: if links take more than this, they bind
_AS_GOOD = 1.01  # steps up to this factor of the shortest count as equally good


@dataclasses.dataclass(frozen=True)
class Job:
    """A model and its training step.

    Attributes:
      name: the name of the model, for people.
      gradients: the gradients in order of production.
      step: seconds of forward and backward pass; 0: all gradients are ready at once.
      backward: the part of `step` that the backward pass takes.
      dtype: the type of the gradients.
      wire_dtype: the type in which gradients are sent.
      meet_every: the number of steps after which all parameters are averaged at once, after the
        step; 1: gradients are averaged in each step.

    Raises:
      ConfigurationError: a value is impossible; the error names it and what is allowed.
    """

    name: str
    gradients: tuple[Gradient, ...]
    step: float
    backward: float
    dtype: str = "float32"
    wire_dtype: str = "float32"
    meet_every: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.step <= 1e5:
            raise ConfigurationError(f"--step is {self.step:g} s; allowed are 0 to 100000 s")
        if not 0 < self.backward <= 1:
            raise ConfigurationError(
                f"--backward is {self.backward:g}; it must be above 0 and at most 1"
            )
        if not 1 <= self.meet_every <= 10**9:
            raise ConfigurationError(
                f"--meet-every is {self.meet_every}; it must be from 1 to 1000000000"
            )
        if self.meet_every > 1 and not self.step:
            raise ConfigurationError(
                f"--meet-every {self.meet_every} is a number of steps: give --step TIME"
            )
        if self.wire_dtype != self.dtype and (
            WIRE_DTYPES[self.wire_dtype] >= WIRE_DTYPES[self.dtype]
        ):
            raise ConfigurationError(
                f"--wire-dtype {self.wire_dtype} with --dtype {self.dtype}: float32 can be sent in "
                "float16 or bfloat16, and any type in fp8, int8 or topk:0.01"
            )

    def of_meeting(self) -> Job:
        """Returns the job of one meeting: an average of everything, there at once."""
        return dataclasses.replace(self, step=0.0, meet_every=1)

    def of_peers(self) -> Job:
        """Returns the job as algorithms without servers send it.

        Each of their steps would round 8-bit numbers again, so they send 16 bits instead.
        """
        if self.wire_dtype in DTYPES:
            return self
        wire = "bfloat16" if self.dtype == "float32" else self.dtype
        return dataclasses.replace(self, wire_dtype=wire)

    @property
    def elements(self) -> int:
        """The number of elements of all gradients."""
        return sum(each.elements for each in self.gradients)

    @property
    def size(self) -> int:
        """Bytes of all gradients on the wire."""
        return round(self.elements * WIRE_DTYPES[self.wire_dtype])


@dataclasses.dataclass(frozen=True)
class Prices:
    """Prices per hour, in any currency.

    Attributes:
      node: price of a node with its workers.
      server: price of a dedicated server.
    """

    node: float
    server: float

    def of_step(self, network: Network, seconds: float) -> float:
        """Returns the price of a step that takes so many seconds."""
        per_hour = network.nodes * self.node + network.servers * self.server
        return per_hour * seconds / 3600


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer about one job on one network.

    Attributes:
      network: the network.
      job: the job that runs on it.
      timeline: the times of a step.
      buffers: the fusion buffers of Herring's plan.
      herring: what averaging takes; None for a single node, which has nothing to send.
      limit: the least seconds of averaging that the links' rates allow.
      limit_step: seconds of a step if only links and the stages inside a node took time.
      binds: what lengthens the step, or would lengthen it first; a key of ``show._BINDS``.
      node_bytes: bytes that a node sends in a step, without headers; it receives as many.
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
        """The step without communication divided by the step; None if nothing is computed."""
        return self.job.step / self.timeline.seconds if self.job.step > 0 else None

    @property
    def least_outstanding(self) -> float:
        """Bytes under way to the busiest server with the smallest credit: a segment per node."""
        if self.network.nodes == 1:
            return 0.0
        share = max(models.shares(self.network.nodes, self.network.servers))
        return self.network.nodes * min(coarse.Scenario.segment_bytes, share * self.buffers[0].size)


@dataclasses.dataclass(frozen=True)
class Best:
    """The best numbers of dedicated servers.

    Attributes:
      tried: answers for several numbers of servers, in ascending order.
      by_time: the answer with the fewest servers whose step is within a percent of the shortest;
        smaller differences are noise.
      by_cost: the answer with the cheapest step; None without prices.
      peers: seconds of a step with each of `PEERS`, from models.
      usual_ring: the same for the ring in the buffers that libraries use by default.
      shallow, deep: the answer for the given number of servers, if switch ports held an eighth of
        the buffer, or eight times as much, because the buffer is seldom known. None for a single
        node, which has no port.
    """

    tried: tuple[Answer, ...]
    by_time: Answer
    by_cost: Answer | None
    peers: dict[str, float]
    usual_ring: float
    shallow: Answer | None = None
    deep: Answer | None = None


def answer(job: Job, network: Network) -> Answer:
    """Computes what a step of a job takes on a network.

    Raises:
      ConfigurationError, InvalidArgumentError: the coarse model refuses a value and names it.
    """
    if job.meet_every > 1:
        return _spread(job, answer(job.of_meeting(), network))
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


def _spread(job: Job, meeting: Answer) -> Answer:
    """Returns the answer about an average step of a job that meets seldom."""
    every, whole = job.meet_every, meeting.timeline
    exposed = whole.seconds / every
    parts = (each / every for each in (whole.network, whole.node, whole.backlog))
    return dataclasses.replace(
        meeting,
        job=job,
        timeline=Timeline(job.step + exposed, exposed, *parts),
        limit_step=job.step + meeting.limit_step / every,
        binds="computing" if exposed <= _HIDDEN * job.step else meeting.binds,
        node_bytes=meeting.node_bytes / every,
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


def peer_step(
    name: str, job: Job, network: Network, headers: float, small: float = float("inf")
) -> float:
    """Models how long a step takes with one of `PEERS` and the buffers that suit it best.

    Args:
      name: the algorithm.
      job: the job that runs.
      network: the network; its servers do not count.
      headers: bytes on the wire divided by bytes of gradients.
      small: bytes of smaller buffers that it may use besides its usual ones, such as Herring's.

    Returns:
      Seconds.
    """
    if job.meet_every > 1:
        meeting = peer_step(name, job.of_meeting(), network, headers, small)
        return job.step + meeting / job.meet_every
    job = job.of_peers()
    start = peer_seconds(name, network, 0, headers)
    pace = (peer_seconds(name, network, job.size, headers) - start) / job.size
    # A flat ring has links of its own between the workers of a node, and no node stage.
    own = network.workers > 1 and name != "ring"
    stages = Stages(1 / network.node_rate if own else 0.0, pace, start, network.lateness)
    itemsize = WIRE_DTYPES[job.wire_dtype]
    return min(
        play(
            fuse_evenly(job.gradients, itemsize, size, job.step, job.backward), stages, job.step
        ).seconds
        for size in (*_PEER_BUFFERS, small)
    )


def peer_steps(found: Answer) -> dict[str, float]:
    """Returns the seconds of a step with each of `PEERS` on the network of an answer.

    They may use buffers as small as Herring's, so that algorithms are compared and not the sizes of
    buffers.
    """
    headers = found.herring.headers if found.herring else 1.0
    small = found.buffers[0].size * found.job.of_peers().size / found.job.size
    return {name: peer_step(name, found.job, found.network, headers, small) for name in PEERS}


def best_servers(
    job: Job,
    network: Network,
    prices: Prices | None,
    report: Callable[[int, int, str], None],
) -> Best:
    """Tries several numbers of dedicated servers.

    These are eighths of the nodes, some larger numbers, and the number that `network` has.

    Args:
      job: the job that runs.
      network: the network, with any number of servers.
      prices: the prices by which to find the cheapest step; None: prices do not count.
      report: called before each number is tried, with (done, all, what).

    Raises:
      ConfigurationError, InvalidArgumentError: the coarse model refuses a value and names it.
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
    own = next(each for each in tried if each.network.servers == network.servers)
    headers = own.herring.headers if own.herring else 1.0
    usual_ring = peer_step("ring", job, network, headers)
    best = _fewest(tried), _cheapest(tried, prices), peer_steps(own), usual_ring
    return Best(tuple(tried), *best, shallow, deep)


def _fewest(tried: Sequence[Answer]) -> Answer:
    shortest = min(each.timeline.seconds for each in tried)
    return next(each for each in tried if each.timeline.seconds <= _AS_GOOD * shortest)


def _cheapest(tried: Sequence[Answer], prices: Prices | None) -> Answer | None:
    if prices is None:
        return None
    return min(tried, key=lambda each: prices.of_step(each.network, each.timeline.seconds))
