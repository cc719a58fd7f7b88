"""Measures Herring's performance figures, compared with their limits or with Gloo in the same run.

  python benchmarks/figures.py list
  python benchmarks/figures.py link-8x8 cpu-bound --json figures.json
  python benchmarks/figures.py all
  python benchmarks/figures.py link-8x8 small --peer-only      Gloo alone, without Herring

Emulated hosts need root. Workers and dedicated servers are started directly on their hosts, with
only the documented environment variables. docs/benchmarks.md describes how each figure is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness import BenchJob, Hosts, JobError, Layout, ThisMachine, run_pairs

from herring.base.provenance import write_results
from herring.bench import models
from herring_lab.competitors import missing
from herring_lab.emulate import Cluster, ClusterError

MEGABIT = 1e6


@dataclasses.dataclass
class Figure:
    """A measured number and its required value.

    Attributes:
      name: what was measured.
      value: the number, in most cases a ratio.
      required: the largest value allowed, or the smallest if ``at_least``; None means that there is
        no requirement.
      at_least: whether ``required`` is a minimum.
      unit: the unit of value and required.
      measured: the seconds or bytes from which the value is computed, by name.
    """

    name: str
    value: float
    required: float | None
    measured: dict[str, float]
    at_least: bool = False
    unit: str = ""

    @property
    def passed(self) -> bool:
        """Whether the value meets the requirement; True if there is none."""
        if self.required is None:
            return True
        return self.value >= self.required if self.at_least else self.value <= self.required

    def line(self) -> str:
        """Returns the figure as a line of the summary."""
        sign = ">=" if self.at_least else "<="
        demand = "" if self.required is None else f"{sign} {self.required:g}"
        verdict = "" if self.required is None else ("PASS" if self.passed else "FAIL")
        behind = "  ".join(f"{key} {number:.6g}" for key, number in self.measured.items())
        value = f"{self.value:.3f}{self.unit}"
        return f"{self.name:<34} {value:>10} {demand:>9} {verdict:<4}  {behind}"


@dataclasses.dataclass
class Context:
    """The options of the command line, and the documents that figures add to the JSON file."""

    options: argparse.Namespace
    raw: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def peer_only(self) -> bool:
        """Whether only the peer is measured: Gloo, or Horovod."""
        return self.options.peer_only

    def arguments(self, size: str, warmup: int, iterations: int, **more: Any) -> list[str]:
        """Returns arguments for the benchmark; ``--quick`` reduces the numbers of iterations."""
        if self.options.quick:
            warmup, iterations = min(warmup, 1), min(iterations, 3)
            if "batches" in more:
                more["batches"] = min(more["batches"], 3)
        arguments = ["--sizes", size, "--warmup", str(warmup), "--iterations", str(iterations)]
        arguments += ["--op", "sum"]
        if "batches" in more:
            arguments += ["--batches", str(more["batches"]), "--paced"]
        if more.get("check", True):
            arguments.append("--check")
        return arguments

    def note(self, name: str, document: dict[str, Any], hosts: Hosts) -> dict[str, Any]:
        """Stores a job's document for the JSON file; fails if the job's results were wrong."""
        entry = {"figure": name, **document}
        if isinstance(hosts, Cluster):
            entry["network"] = dataclasses.asdict(hosts.total())
        self.raw.append(entry)
        wrong = sum(result["wrong"] or 0 for result in document["results"])
        if wrong:
            raise JobError(f"{name}: {wrong} wrong elements")
        return document


# --- one library alone, against the link ---------------------------------------------------------


def link(
    context: Context,
    name: str,
    nodes: int,
    size_bytes: int,
    megabits: float,
    queue_seconds: float,
    required: float,
    servers: int | None = None,
    limit: float | None = None,
    required_p99: float | None = 1.5,
    local_size: int = 1,
) -> list[Figure]:
    """Measures ``nodes`` hosts of ``local_size`` workers, and ``servers`` dedicated servers.

    All links are equal. By default, there are as many servers as nodes.
    """
    servers = nodes if servers is None else servers
    if limit is None:
        limit = size_bytes * 8 / (megabits * MEGABIT)
    peer = "gloo" if context.peer_only else "herring"
    if peer == "gloo":
        servers = 0
    layout = Layout(range(nodes), range(nodes, nodes + servers), local_size)
    arguments = context.arguments(str(size_bytes), 5, 20)
    with Cluster(nodes + servers, megabits * MEGABIT, queue_seconds) as hosts:
        with BenchJob(hosts, layout, arguments, peer) as job:
            result = context.note(name, job.finish(), hosts)["results"][0]
        network = hosts.total()
    median, p99 = result["p50_seconds"], result["p99_seconds"]
    measured = {"p50": median, "limit": limit, "retransmits": network.retransmits}
    demand = None if peer == "gloo" else required
    figures = [Figure(f"{name} {peer} p50/limit", median / limit, demand, measured)]
    if required_p99 is not None:
        demand = None if peer == "gloo" else required_p99
        measured = {"p99": p99, "limit": limit, "drops": network.switch_drops}
        figures.append(Figure(f"{name} {peer} p99/limit", p99 / limit, demand, measured))
    return figures


def link_8x8(context: Context) -> list[Figure]:
    """8 + 8 hosts, 200 Mbit/s, queues of 20 ms, 25 MB."""
    return link(context, "link-8x8", 8, 25_000_000, 200, 0.020, 1.04)


def link_4x4(context: Context) -> list[Figure]:
    """4 + 4 hosts, 200 Mbit/s, queues of 20 ms, 25 MB."""
    return link(context, "link-4x4", 4, 25_000_000, 200, 0.020, 1.04)


def link_4x2(context: Context) -> list[Figure]:
    """4 hosts of 2 workers + 4, 200 Mbit/s, queues of 20 ms, 25 MB: each worker sends its part."""
    return link(context, "link-4x2", 4, 25_000_000, 200, 0.020, 1.04, local_size=2)


def link_16x16(context: Context) -> list[Figure]:
    """16 + 16 hosts, 100 Mbit/s, queues of 20 ms, 12.5 MB."""
    return link(context, "link-16x16", 16, 12_500_000, 100, 0.020, 1.06)


def shallow_queue(context: Context) -> list[Figure]:
    """8 + 8 hosts, 200 Mbit/s, queues of only 2 ms, 25 MB."""
    return link(context, "shallow-queue", 8, 25_000_000, 200, 0.002, 1.06)


def colocated(context: Context) -> list[Figure]:
    """8 hosts, 200 Mbit/s, 0, 2 and 4 dedicated servers, 25 MB: checks the k-of-n formula."""
    figures = []
    n, size, rate = 8, 25_000_000, 200 * MEGABIT / 8
    for k in (0,) if context.peer_only else (0, 2, 4):
        limit = models.colocated_time(n, k, size, rate)
        name = f"colocated k={k}"
        figures += link(context, name, n, size, 200, 0.020, 1.08, k, limit, None)
    return figures


# --- Herring and Gloo in turns -------------------------------------------------------------------


def pairs(
    context: Context,
    name: str,
    hosts: Hosts,
    layout: Layout,
    arguments: Sequence[str],
    own: Sequence[str] = (),
    peer: str = "gloo",
) -> dict[str, list[float]]:
    """Runs Herring and a peer in turns; returns the median seconds of each batch, by library.

    The arguments in ``own`` are for Herring only.
    """
    bare = dataclasses.replace(layout, servers=())
    if context.peer_only:
        with BenchJob(hosts, bare, arguments, peer) as other:
            more = other.wait_ready()
            while more:
                more = other.run_batch()
            return {peer: _batch_medians(context.note(name, other.finish(), hosts))}
    with BenchJob(hosts, bare, arguments, peer) as other:
        with BenchJob(hosts, layout, [*arguments, *own], "herring") as herring:
            run_pairs(herring, other)
            return {
                "herring": _batch_medians(context.note(name, herring.finish(), hosts)),
                peer: _batch_medians(context.note(name, other.finish(), hosts)),
            }


def _batch_medians(document: dict[str, Any]) -> list[float]:
    return [statistics.median(batch) for batch in document["results"][0]["batches_seconds"]]


def ratio(
    name: str,
    medians: dict[str, list[float]],
    required: float | None,
    inverse: bool = False,
    peer: str = "gloo",
) -> list[Figure]:
    """Returns the median over pairs of Herring's time divided by a peer's, or the ``inverse``."""
    other = medians[peer]
    measured = {peer: statistics.median(other)}
    if "herring" not in medians:
        return [Figure(f"{name} {peer} seconds", measured[peer], None, measured)]
    herring = medians["herring"]
    measured["herring"] = statistics.median(herring)
    ratios = [theirs / ours if inverse else ours / theirs for ours, theirs in zip(herring, other)]
    label = f"{peer}/herring" if inverse else f"herring/{peer}"
    measured |= {"least": min(ratios), "most": max(ratios)}
    return [Figure(f"{name} {label}", statistics.median(ratios), required, measured, inverse)]


def gloo_ratio(context: Context) -> list[Figure]:
    """8 + 8 hosts, 200 Mbit/s, queues of 20 ms, 25 MB; alternates with Gloo's ring on 8 hosts."""
    arguments = context.arguments("25M", 1, 5, batches=4)
    with Cluster(16, 200 * MEGABIT, 0.020) as hosts:
        layout = Layout(range(8), range(8, 16))
        medians = pairs(context, "gloo-ratio", hosts, layout, arguments)
    return ratio("gloo-ratio", medians, 1.70, inverse=True)


def horovod_ratio(context: Context) -> list[Figure]:
    """As gloo-ratio, with Horovod over Gloo, in jobs of their own; needs `make peers`.

    Ranks of Horovod exchange messages in each cycle, also while they have nothing to sum. Those
    would take the links and processors of Herring's batches.
    """
    reason = missing("horovod")
    if reason:
        print(f"# horovod-ratio skipped: {reason}", flush=True)
        return []
    arguments = context.arguments("25M", 5, 10)
    peers = ("horovod",) if context.peer_only else ("horovod", "herring")
    medians: dict[str, list[float]] = {peer: [] for peer in peers}
    with Cluster(16, 200 * MEGABIT, 0.020) as hosts:
        for turn in range(4):
            for peer in peers if turn % 2 == 0 else reversed(peers):
                servers = range(8, 16) if peer == "herring" else ()
                with BenchJob(hosts, Layout(range(8), servers), arguments, peer) as job:
                    document = context.note(f"horovod-ratio {turn}", job.finish(), hosts)
                    medians[peer].append(document["results"][0]["p50_seconds"])
    return ratio("horovod-ratio", medians, None, inverse=True, peer="horovod")


def algorithms(context: Context) -> list[Figure]:
    """Ring and butterfly, 8 hosts, 200 Mbit/s, queues of 20 ms, 25 MB; alternates with Gloo."""
    figures = []
    arguments = context.arguments("25M", 1, 5, batches=4)
    for algorithm in ("ring", "butterfly"):
        name = f"algorithms {algorithm}"
        with Cluster(8, 200 * MEGABIT, 0.020) as hosts:
            own = ["--algorithm", algorithm]
            medians = pairs(context, name, hosts, Layout(range(8)), arguments, own)
        model = models.time(algorithm, 8, 25e6, 200 * MEGABIT / 8)
        figures += ratio(name, medians, 1.03)
        for library, seconds in medians.items():
            median = statistics.median(seconds)
            demand = 1.10 if library == "herring" else None
            measured = {"p50": median, "model": model}
            figures.append(Figure(f"{name} {library}/model", median / model, demand, measured))
    return figures


def _unlimited(
    context: Context, name: str, size: str, warmup: int, iterations: int, demand: float
) -> list[Figure]:
    """Measures 8 + 8 hosts without a rate limit, alternating with Gloo on 8 hosts."""
    arguments = context.arguments(size, warmup, iterations, batches=10)
    with Cluster(16) as hosts:
        layout = Layout(range(8), range(8, 16))
        medians = pairs(context, name, hosts, layout, arguments)
    return ratio(name, medians, demand)


def cpu_bound(context: Context) -> list[Figure]:
    """8 + 8 hosts without a rate limit, 100 MB; alternates with Gloo's ring on 8 hosts."""
    return _unlimited(context, "cpu-bound", "100M", 1, 3, 0.9)


def small(context: Context) -> list[Figure]:
    """8 + 8 hosts without a rate limit, 4 KB; alternates with Gloo on 8 hosts."""
    return _unlimited(context, "small", "4K", 5, 50, 1.0)


def one_node(context: Context) -> list[Figure]:
    """One machine, 2 and 4 workers, 25 MB and 100 MB; alternates with Gloo."""
    figures = []
    for workers in (2, 4):
        for size in ("25M", "100M"):
            name = f"one-node n={workers} {size}"
            arguments = context.arguments(size, 1, 5, batches=10)
            with ThisMachine() as hosts:
                layout = Layout([0], local_size=workers)
                figures += ratio(name, pairs(context, name, hosts, layout, arguments), 0.6)
    return figures


def failover(context: Context) -> list[Figure]:
    """4 + 4 hosts without a rate limit, 25 MB; a job with failover alternates with one without."""
    if context.peer_only:
        return []
    arguments = context.arguments("25M", 1, 5, batches=4)
    layout = Layout(range(4), range(4, 8))
    settings = {"HERRING_FAILOVER": "true"}
    with_it: list[float] = []
    bare: list[float] = []
    # Jobs differ by more than their turns do, because each finds its own credit.
    for _ in range(5):
        with (
            Cluster(8) as hosts,
            BenchJob(hosts, layout, arguments, operation="planned") as without,
            BenchJob(hosts, layout, arguments, operation="planned", settings=settings) as covered,
        ):
            run_pairs(covered, without)
            for job, medians in ((covered, with_it), (without, bare)):
                medians += _batch_medians(context.note("failover", job.finish(), hosts))
    ratios = [ours / theirs for ours, theirs in zip(with_it, bare)]
    measured = {"without": statistics.median(bare), "with": statistics.median(with_it)}
    measured |= {"least": min(ratios), "most": max(ratios)}
    return [Figure("failover with/without", statistics.median(ratios), 1.2, measured)]


def eight_bits(context: Context) -> list[Figure]:
    """8 + 8 hosts, 200 Mbit/s, queues of 20 ms, 25 MB of float32: rounds that travel in fewer bits.

    They alternate with rounds in float32, in bfloat16, and with Gloo's float32 ring on 8 hosts.
    """
    if context.peer_only:
        return []
    arguments = context.arguments("25M", 2, 5, batches=3, check=False)
    layout = Layout(range(8), range(8, 16))
    figures = []
    for wire, other, required in (
        ("fp8", "float32", 0.27),
        ("int8", "float32", 0.27),
        ("fp8", "bfloat16", None),
        ("fp8/bfloat16", "float32", 0.52),
        ("topk:0.01", "float32", None),
        ("fp8", "gloo", 1 / 7),
    ):
        peer = "gloo" if other == "gloo" else "herring"
        theirs = [] if other in ("float32", "gloo") else ["--wire-dtype", other]
        ours = [*arguments, "--wire-dtype", wire]
        operation = "allreduce" if peer == "gloo" else "planned"
        with (
            Cluster(16, 200 * MEGABIT, 0.020) as hosts,
            BenchJob(hosts, layout, ours, operation="planned") as narrow,
            BenchJob(hosts, layout, [*arguments, *theirs], peer, operation=operation) as full,
        ):
            run_pairs(narrow, full)
            short, long = (
                _batch_medians(context.note(f"eight-bits {wire}", job.finish(), hosts))
                for job in (narrow, full)
            )
        ratios = [one / another for one, another in zip(short, long)]
        measured = {wire: statistics.median(short), other: statistics.median(long)}
        measured |= {"least": min(ratios), "most": max(ratios)}
        name = f"eight-bits {wire}/{other}"
        figures.append(Figure(name, statistics.median(ratios), required, measured))
    return figures


# --- memory --------------------------------------------------------------------------------------


def server_memory(context: Context) -> list[Figure]:
    """Peak memory of 2 servers with 8 nodes, for models of 10 MB and 1 GB."""
    if context.peer_only:
        return []
    peaks = {}
    with Cluster(10) as hosts:
        layout = Layout(range(8), (8, 9))
        # Both runs move the same number of bytes, so that both have time to reach their peak.
        for size, iterations in (("10M", 200), ("1G", 2)):
            arguments = ["--sizes", size, "--op", "sum", "--warmup", "0"]
            arguments += ["--iterations", str(iterations)]
            with BenchJob(hosts, layout, arguments, operation="planned") as job:
                document = context.note("server-memory", job.finish(), hosts)
            peaks[size] = max(document["server_peak_bytes"])
    difference = abs(peaks["1G"] - peaks["10M"]) / 1e6
    measured = {f"MB with {size}": peak / 1e6 for size, peak in peaks.items()}
    return [Figure("server-memory difference", difference, 16, measured, unit=" MB")]


FIGURES: dict[str, Callable[[Context], list[Figure]]] = {
    "link-8x8": link_8x8,
    "link-4x4": link_4x4,
    "link-4x2": link_4x2,
    "link-16x16": link_16x16,
    "shallow-queue": shallow_queue,
    "gloo-ratio": gloo_ratio,
    "horovod-ratio": horovod_ratio,
    "colocated": colocated,
    "algorithms": algorithms,
    "cpu-bound": cpu_bound,
    "one-node": one_node,
    "small": small,
    "eight-bits": eight_bits,
    "failover": failover,
    "server-memory": server_memory,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures the figures named on the command line.

    Returns:
      The exit status: 0 on success, 1 if a figure misses its requirement, 2 on errors.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*FIGURES, "all", "list"]
    parser.add_argument(
        "figures", nargs="+", choices=names, metavar="FIGURE", help="a figure; 'list' shows all"
    )
    parser.add_argument("--quick", action="store_true", help="run only a few iterations")
    parser.add_argument("--peer-only", action="store_true", help="measure the peer without Herring")
    parser.add_argument("--json", metavar="FILE", help="write figures and measurements to FILE")
    options = parser.parse_args(argv)
    if "list" in options.figures:
        for name, function in FIGURES.items():
            print(f"{name:<14} {(function.__doc__ or '').strip()}")
        return 0
    # A terminated run ends like an interrupted one, so that its cluster and processes are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    context = Context(options)
    chosen = list(FIGURES) if "all" in options.figures else options.figures
    figures: list[Figure] = []
    errors = []
    for name in chosen:
        start = time.monotonic()
        try:
            for figure in FIGURES[name](context):
                print(figure.line(), flush=True)
                figures.append(figure)
        except (JobError, ClusterError) as error:
            errors.append(f"{name}: {error}")
            print(f"{name:<34} ERROR {error}", flush=True)
        print(f"# {name} took {time.monotonic() - start:.0f} s", flush=True)
    if options.json:
        document = {
            "figures": [{**dataclasses.asdict(f), "passed": f.passed} for f in figures],
            "errors": errors,
            "runs": context.raw,
        }
        write_results(options.json, document, options)
    failed = [figure for figure in figures if not figure.passed]
    print(f"# {len(figures)} figures, {len(failed)} failed, {len(errors)} errors")
    return 2 if errors else 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
