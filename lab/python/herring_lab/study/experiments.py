"""What the study measures: each experiment gives a table, and says how to draw it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from herring import models
from herring_lab.report import Chart, Table
from herring_lab.study.bench import Network, Point, measure, ping_pong

__all__ = [
    "DEFAULT_PEERS",
    "EXPERIMENTS",
    "Peer",
    "Scale",
    "allreduce",
    "costs",
    "fit_line",
]

_BURST = 256e3
_ALGORITHMS = ("herring", "ring", "butterfly", "tree", "server")
#: What Herring is compared with: the peers' own choice, and what they can be told to do.
DEFAULT_PEERS = (
    *("gloo", "mpich", "mpich:butterfly"),
    *("openmpi", "openmpi:ring", "openmpi:butterfly"),
    "nccl",
)
# Whose model fits what a peer chooses for large arrays.
_CHOICES = {"gloo": "ring", "mpich": "butterfly", "openmpi": "butterfly", "nccl": "ring"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
      library: one of ``herring_lab.competitors.PEERS``.
      algorithm: one that it can be told to use; None: its own choice.
    """

    library: str
    algorithm: str | None = None

    @property
    def label(self) -> str:
        """What to call it in tables."""
        return f"{self.library} {self.algorithm or ''}".strip()

    @property
    def model(self) -> str | None:
        """The algorithm of `herring.models` that it follows, if any."""
        algorithm = self.algorithm or _CHOICES[self.library]
        return algorithm if algorithm in models.ALGORITHMS else None


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
      hosts: numbers of workers.
      size: bytes of the array.
      network: the links.
      iterations: timed ones per point.
      runs: of what may come out differently in each.
      report: told about each point before it is measured, as (done, all, what).
      peers: libraries to compare with, all installed.
      skipped: a line about each that is not.
      quick: a look at the machinery.
      compute_seconds: of a training step.
      node_price, server_price: per hour.
    """

    hosts: Sequence[int]
    size: int
    network: Network
    iterations: int
    report: Callable[[int, int, str], None]
    peers: Sequence[Peer] = ()
    skipped: Sequence[str] = ()
    quick: bool = False
    runs: int = 3
    compute_seconds: float = 4.0
    node_price: float = 31.2
    server_price: float = 4.9


def fit_line(points: Sequence[tuple[float, float]], burst: float = 0.0) -> tuple[float, float]:
    """Fits time = alpha + beta * bytes to (bytes, seconds).

    Args:
      points: at least one above `burst`.
      burst: bytes that a token bucket lets through at once; shorter messages do not show the rate.

    Returns:
      alpha in seconds: the time of the shortest message; beta in seconds per byte: least squares
      of the relative error over the messages above the burst.
    """
    alpha = min(points)[1]
    above = [(size, seconds) for size, seconds in points if size > burst]
    upper = sum(size / seconds * (seconds - alpha) / seconds for size, seconds in above)
    return alpha, upper / sum((size / seconds) ** 2 for size, seconds in above)


def line_rate(scale: Scale) -> Table:
    """Latency and bandwidth over message size between two hosts."""
    sizes = [1, *(4**i for i in range(4, 13))]
    scale.report(0, 1, "ping-pong between two hosts")
    found = ping_pong(scale.network, sizes)
    alpha, beta = fit_line(found, _BURST)
    rows = [
        {
            "bytes": size,
            "seconds": seconds,
            "model_seconds": alpha + beta * size,
            "bytes_per_second": size / seconds,
        }
        for size, seconds in found
    ]
    notes = [
        f"fitted: alpha {alpha * 1e6:.1f} us, 1/beta {1e-6 / beta:.2f} MB/s, of a link of "
        f"{scale.network.bandwidth / 1e6:.2f} MB/s",
        "shorter messages pass the token buckets at once (a burst of 64 kB at each): their times "
        "show the latency, those above 256 kB the rate",
    ]
    chart = Chart(
        "bytes",
        ["seconds", "model_seconds"],
        "size of the message (bytes)",
        "time, one way (s)",
        x_scale="log",
        y_scale="log",
        names={"seconds": "measured", "model_seconds": "alpha + beta x size"},
    )
    return Table("line-rate", "One message between two hosts", rows, chart, notes)


def allreduce(scale: Scale) -> Table:
    """Every algorithm, and the peers, over the number of hosts, beside their models."""
    kinds = [*(Peer("herring", name) for name in _ALGORITHMS), *scale.peers]
    bandwidth = scale.network.bandwidth
    rows, best = [], {}
    for index, (hosts, kind) in enumerate((hosts, kind) for hosts in scale.hosts for kind in kinds):
        own = kind.library == "herring"
        label = str(kind.algorithm) if own else kind.label
        what = f"{label}, {hosts} hosts, {scale.size / 1e6:.3g} MB"
        scale.report(index, len(scale.hosts) * len(kinds), what)
        servers = hosts if label == "herring" else 1 if own else 0
        point = Point(hosts, servers, scale.size, kind.library, kind.algorithm)
        result = measure(scale.network, point, scale.iterations)
        model = models.time(kind.model, hosts, scale.size, bandwidth) if kind.model else None
        median = result["p50_seconds"]
        if label == "herring":
            best[hosts] = median
        rows.append(
            {
                "algorithm": label,
                "hosts": hosts,
                "seconds": median,
                "slowest_seconds": result["max_seconds"],
                "model_seconds": model,
                "measured_by_model": median / model if model else None,
                "herring_is_faster_by": median / best[hosts],
                "retransmits": result["retransmits"],
            }
        )
    title = f"All-reduce of {scale.size / 1e6:g} MB, as many servers as workers for Herring"
    notes = [
        "tree and server forward parts while the rest arrives and may be faster than their models, "
        "which go level by level",
        "the servers of the other algorithms only coordinate",
        "a peer without the name of an algorithm chooses by itself: its model is that of what it "
        "chooses for large arrays (a ring; MPICH and Open MPI 4.1 a butterfly)",
        *(f"skipped: {line}" for line in scale.skipped),
    ]
    chart = Chart(
        "hosts",
        ["seconds", "model_seconds"],
        "number of workers, one per host",
        "time of an all-reduce (s)",
        by="algorithm",
    )
    return Table(f"allreduce-{scale.size / 1e6:.3g}MB", title, rows, chart, notes)


def ablations(scale: Scale) -> Table:
    """One choice of Herring's at a time against what it replaces."""
    hosts = max(scale.hosts)
    network, size = scale.network, scale.size
    variants = _variants(hosts, size, network)
    rows = []
    known: dict[str, dict[str, Any]] = {}
    for index, (what, variant, links, where) in enumerate(variants):
        scale.report(index, len(variants), f"{what}: {variant}")
        key = f"{links}{where}"
        if key not in known:
            known[key] = measure(links, where, scale.iterations)
        result = known[key]
        rows.append(
            {
                "choice": what,
                "variant": variant,
                "seconds": result["p50_seconds"],
                "slowest_seconds": result["max_seconds"],
                "by_line_rate": result["p50_seconds"] * network.bandwidth / size,
                "server_megabytes": result["server_bytes"] / 1e6,
                "drops": result["drops"],
                "retransmits": result["retransmits"],
            }
        )
    title = f"{hosts} workers and as many servers, {size / 1e6:g} MB of float32"
    notes = [
        "two processors carry all hosts: several proxies can hardly gain here",
        "steered credit begins anew in every run, and its trials are part of the times",
        "server megabytes: the most that one server's link carried in a direction, per iteration",
        f"gradients: {size / 1e6:g} MB in 50 uneven ones, as in training; whole: each is an "
        "operation of its own, which stays whole on the server that owns its name",
        "paths: what crosses between the leaves just fits through four of them; with one at a "
        f"tenth of its rate, {1 / _LEFT:.3f} of the line rate's time is what the rest allows",
        f"slow card: one server's link has half the rate; {2 * hosts / (2 * hosts - 1):.3f} is the "
        "least that any shares allow",
    ]
    return Table("ablations", title, rows, notes=notes)


_PATHS = 4
_SLOW_PATH = 0.1
_LEFT = (_PATHS - 1 + _SLOW_PATH) / _PATHS  # of the capacity of all paths


def _variants(hosts: int, size: int, network: Network) -> list[tuple[str, str, Network, Point]]:
    """What is compared: choice, variant, and the point that shows it."""

    def point(dtype: str = "float32", operation: str = "allreduce", **settings: str) -> Point:
        total = size // 2 if dtype == "bfloat16" else size
        named = {f"HERRING_{name.upper()}": value for name, value in settings.items()}
        return Point(hosts, hosts, total, operation=operation, dtype=dtype, settings=named)

    # Workers and servers stand on both leaves: half of what hosts of a leaf send goes across.
    path = network.rate_bits * hosts / 2 / _PATHS
    faulty = (path,) * (_PATHS - 1) + (path * _SLOW_PATH,)
    spine = dataclasses.replace(network, paths=faulty)
    whole = dataclasses.replace(network, paths=(path * _LEFT,) * _PATHS)
    slow = dataclasses.replace(network, rates={2 * hosts - 1: network.rate_bits / 2})
    weights = ",".join(["1"] * (hosts - 1) + ["0.5"])
    return [
        ("credit", "steered", network, point()),
        ("credit", "unbounded", network, point(credit="16MiB")),
        ("proxies", "1", network, point()),
        ("proxies", "4", network, point(proxies="4")),
        ("segment", "2 KiB", network, point(segment_bytes="2048")),
        ("segment", "8 KiB", network, point()),
        ("segment", "32 KiB", network, point(segment_bytes="32768")),
        ("wire dtype", "float32", network, point()),
        ("wire dtype", "bfloat16", network, point("bfloat16")),
        ("gradients", "fusion buffers", network, point(operation="planned")),
        ("gradients", "whole", network, point(operation="variables", small_bytes="64MiB")),
        ("slow card", "equal shares", slow, point()),
        ("slow card", "shares by rate", slow, point(server_weights=weights)),
        ("paths, one slow", "1 flow", spine, point()),
        ("paths, one slow", "4 flows", spine, point(flows="4")),
        ("paths, one slow", "8 flows", spine, point(flows="8")),
        ("paths, equal, as much in all", "4 flows", whole, point(flows="4")),
        ("paths, equal, as much in all", "8 flows", whole, point(flows="8")),
    ]


EXPERIMENTS: dict[str, Callable[[Scale], Table]] = {
    "line-rate": line_rate,
    "allreduce": allreduce,
    "ablations": ablations,
}


def costs(
    nodes: int,
    size: float,
    bandwidth: float,
    compute_seconds: float,
    node_price: float,
    server_price: float,
) -> Table:
    """What k dedicated servers cost, and what they buy (paper, section IV.E), from the models.

    Args:
      nodes: worker nodes.
      size: bytes of gradients per step.
      bandwidth: bytes per second and direction of a link.
      compute_seconds: of a step; communication overlaps with it, and what is longer counts.
      node_price: of a worker node per hour.
      server_price: of a server per hour.

    Returns:
      A row per k, from none to as many servers as nodes.
    """
    rows: list[dict[str, Any]] = []
    steps = min(nodes, 8)
    for k in sorted({round(nodes * part / steps) for part in range(steps + 1)}):
        communication = models.colocated_time(nodes, k, size, bandwidth)
        step = max(compute_seconds, communication)
        price = (nodes * node_price + k * server_price) * step / 3600
        first = rows[0] if rows else {"step_seconds": step, "price_per_1000_steps": 1000 * price}
        rows.append(
            {
                "servers": k,
                "communication_seconds": communication,
                "step_seconds": step,
                "faster_by": first["step_seconds"] / step,
                "price_per_1000_steps": 1000 * price,
                "price_by_none": 1000 * price / first["price_per_1000_steps"],
            }
        )
    title = f"{nodes} nodes, {size / 1e6:g} MB per step, {compute_seconds:g} s of computing"
    if math.isclose(rows[0]["step_seconds"], rows[-1]["step_seconds"]):
        notes = ["computing hides all communication: servers buy nothing"]
    else:
        notes = []
    chart = Chart(
        "servers",
        ["faster_by", "price_by_none"],
        "number of dedicated servers",
        "by a step without them (ratio)",
        names={"faster_by": "faster by", "price_by_none": "price of a step"},
        computed=True,
    )
    return Table("cost", title, rows, chart, notes)
