"""Defines experiments of the study; each returns a table and tells how to draw it."""

from __future__ import annotations

import dataclasses
import math
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from herring.base.fit import fit_line
from herring.bench import models
from herring_lab.competitors import missing
from herring_lab.report import Chart, Table
from herring_lab.study.bench import Network, Point, measure, ping_pong
from herring_lab.study.cases import counted

# Messages up to this size do not show the rate of a link of the laboratory.
_SHORT = 256e3
_FITTED_SIZES = (1, 4**9, 4**10, 4**11)  # of messages to which alpha and beta are fitted
_PING_PONG = "ping-pong between two hosts"
_ALGORITHMS = ("herring", "ring", "butterfly", "doubling", "tree", "server")
#: Libraries that Herring is compared with, with their own choice or a given algorithm.
DEFAULT_PEERS = (
    *("gloo", "mpich", "mpich:butterfly"),
    *("openmpi", "openmpi:ring", "openmpi:butterfly"),
    *("horovod", "horovod:mpi"),
    "nccl",
)
# The algorithm that each library chooses for large arrays, whose model applies.
_CHOICES = {
    "gloo": "ring",
    "mpich": "butterfly",
    "openmpi": "butterfly",
    "nccl": "ring",
    "horovod": "gloo",
}
# What carries Horovod's messages also reduces the array, with its own choice of algorithm.
_CARRIERS = {"gloo": "ring", "mpi": "butterfly"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Attributes:
      library: one of ``herring_lab.competitors.PEERS``.
      algorithm: an algorithm of the library; None: the library chooses.
    """

    library: str
    algorithm: str | None = None

    @property
    def label(self) -> str:
        """The name in tables."""
        return f"{self.library} {self.algorithm or ''}".strip()

    @property
    def model(self) -> str | None:
        """The matching algorithm of `herring.models`; None if there is none."""
        algorithm = self.algorithm or _CHOICES[self.library]
        algorithm = _CARRIERS.get(algorithm, algorithm)
        return algorithm if algorithm in models.ALGORITHMS else None


@dataclasses.dataclass(frozen=True)
class Scale:
    """The options of an experiment.

    Attributes:
      hosts: the numbers of workers to measure.
      size: bytes of the array.
      network: the links.
      iterations: timed iterations per point.
      report: called before each point is measured, with (done, all, what).
      peers: libraries to compare with; all are installed.
      skipped: a line about each library that is not installed.
      quick: whether to only test the setup, with few points.
      runs: the number of runs of measurements that differ from run to run.
      compute_seconds: the computing time of a training step.
      node_price, server_price: prices per hour.
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


def line_rate(scale: Scale) -> Table:
    """Measures latency and bandwidth over the message size between two hosts."""
    scale.report(0, 1, _PING_PONG)
    found = ping_pong(scale.network, [1, *(4**i for i in range(4, 13))])
    alpha, beta, burst = fit_line(found, _SHORT)
    rows = [
        {
            "bytes": size,
            "seconds": seconds,
            "model_seconds": alpha + beta * max(size - burst, 0),
            "bytes_per_second": size / seconds,
        }
        for size, seconds in found
    ]
    notes = [
        f"fitted: alpha {alpha * 1e6:.1f} us, 1/beta {1e-6 / beta:.2f} MB/s, of a link of "
        f"{scale.network.bandwidth / 1e6:.2f} MB/s, and a burst of {burst / 1e3:.0f} kB",
        "short messages pass the token buckets at once (each has a burst of 64 kB), so their times "
        "show the latency; the rate and the burst are fitted to messages of 256 KiB and more",
    ]
    chart = Chart(
        "bytes",
        ["seconds", "model_seconds"],
        "size of the message (bytes)",
        "time, one way (s)",
        x_scale="log",
        y_scale="log",
        names={"seconds": "measured", "model_seconds": "alpha + beta x (size - burst)"},
    )
    return Table("line-rate", "One message between two hosts", rows, chart, notes)


def allreduce(scale: Scale) -> Table:
    """Times every algorithm and library over the number of hosts, beside their models.

    The models get the rate of the links without a latency, and once more the latency and rate that
    fit a ping-pong over the same links. The kinds take turns in each run.
    """
    kinds = {
        kind.algorithm or "" if kind.library == "herring" else kind.label: kind
        for kind in (*(Peer("herring", name) for name in _ALGORITHMS), *scale.peers)
    }
    begin = counted(scale.report, 1 + len(scale.hosts) * len(kinds) * scale.runs)
    begin(_PING_PONG)
    alpha, beta, _ = fit_line(ping_pong(scale.network, _FITTED_SIZES), _SHORT)
    links = {"model": (scale.network.bandwidth, 0.0), "model_fitted": (1 / beta, alpha)}
    rows = []
    for hosts in scale.hosts:
        found: dict[str, list[dict[str, Any]]] = {label: [] for label in kinds}
        for _run in range(scale.runs):
            for label, kind in kinds.items():
                begin(f"{label}, {hosts} hosts, {scale.size / 1e6:.3g} MB")
                own = kind.library == "herring"
                servers = hosts if label == "herring" else 1 if own else 0
                point = Point(hosts, servers, scale.size, kind.library, kind.algorithm)
                found[label].append(measure(scale.network, point, scale.iterations))
        best = [result["p50_seconds"] for result in found["herring"]]
        for label, kind in kinds.items():
            seconds = [result["p50_seconds"] for result in found[label]]
            ratios = list(map(operator.truediv, seconds, best))
            median = statistics.median(seconds)
            row = {
                "algorithm": label,
                "hosts": hosts,
                "seconds": median,
                "slowest_seconds": max(result["max_seconds"] for result in found[label]),
            }
            for name, link in links.items():
                model = models.time(kind.model, hosts, scale.size, *link) if kind.model else None
                row[f"{name}_seconds"] = model
                row[f"measured_by_{name}"] = median / model if model else None
            row["herring_is_faster_by"] = statistics.median(ratios)
            row["faster_by_least"], row["faster_by_most"] = min(ratios), max(ratios)
            row["retransmits"] = max(result["retransmits"] for result in found[label])
            rows.append(row)
    title = f"All-reduce of {scale.size / 1e6:g} MB, as many servers as workers for Herring"
    notes = [
        f"models: with links of {scale.network.bandwidth / 1e6:.4g} MB/s without latency; model "
        f"fitted: with alpha {alpha * 1e6:.1f} us and 1/beta {1e-6 / beta:.4g} MB/s, fitted to a "
        "ping-pong between two hosts with such links",
        f"runs: {scale.runs}; seconds are medians over them, and all kinds take turns in each; "
        "herring is faster by: the median of the runs' ratios; least and most: of single runs",
        "tree and server forward parts of the array while the rest arrives, so they may be faster "
        "than their models, which work level by level",
        "with other algorithms than herring, the server only coordinates",
        "a library without the name of an algorithm chooses by itself; its model is that of its "
        "choice for large arrays (a ring; a butterfly with MPICH and Open MPI 4.1)",
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
    """Compares single choices of Herring with what they replace."""
    hosts = max(scale.hosts)
    network, size = scale.network, scale.size
    without_torch = missing("gloo")  # Gloo is missing if torch is
    variants = [
        variant
        for variant in _variants(hosts, size, network)
        if not (without_torch and variant[3].dtype == "bfloat16")  # torch carries this dtype
    ]
    rows = []
    known: dict[str, dict[str, Any]] = {}
    for index, (what, variant, links, where) in enumerate(variants):
        scale.report(index, len(variants), f"{what}: {variant}")
        key = f"{links}{where!r}"
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
        "two processors carry all hosts, so several proxies can hardly gain here",
        "steered credit starts anew in every run, so the times include its trials",
        "server megabytes: the most that one server's link carried in a direction, per iteration",
        f"gradients: {size / 1e6:g} MB in 50 uneven gradients, as in training; whole: each one "
        "is an operation of its own, which stays whole on the server that owns its name",
        "paths: the traffic between the leaves just fits through four paths; with one path at a "
        f"tenth of its rate, the rest allows {1 / _LEFT:.3f} of the line rate's time",
        f"slow card: one server's link has half the rate; {2 * hosts / (2 * hosts - 1):.3f} is the "
        "least that any shares allow",
        *([f"skipped: wire dtype bfloat16: {without_torch}"] if without_torch else []),
    ]
    return Table("ablations", title, rows, notes=notes)


_PATHS = 4
_SLOW_PATH = 0.1
_LEFT = (_PATHS - 1 + _SLOW_PATH) / _PATHS  # the part of all paths' capacity that is left


def _variants(hosts: int, size: int, network: Network) -> list[tuple[str, str, Network, Point]]:
    """Returns what is compared: choice, variant, network, and point to measure."""

    def point(dtype: str = "float32", operation: str = "allreduce", **settings: str) -> Point:
        total = size // 2 if dtype == "bfloat16" else size
        named = {f"HERRING_{name.upper()}": value for name, value in settings.items()}
        return Point(hosts, hosts, total, operation=operation, dtype=dtype, settings=named)

    # Workers and servers are on both leaves, so half of a leaf's traffic crosses the spines.
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
    """Computes from models what k dedicated servers cost and gain (paper, section IV.E).

    Args:
      nodes: the number of worker nodes.
      size: bytes of gradients per step.
      bandwidth: bytes per second of a link, in each direction.
      compute_seconds: the computing time of a step. Communication overlaps with it, and the longer
        of the two counts.
      node_price: price of a worker node per hour.
      server_price: price of a server per hour.

    Returns:
      A table with a row per k, from 0 to as many servers as nodes.
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
        notes = ["computing hides all communication, so servers gain nothing"]
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
