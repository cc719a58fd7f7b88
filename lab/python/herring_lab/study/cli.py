"""The command ``herring study``, which measures and writes tables, JSON and plots to a folder."""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import sys
import time
from typing import Any

from herring.base.units import (
    argument,
    parse_option,
    parse_rate,
    parse_seconds,
    parse_size,
    show_time,
)
from herring.errors import ConfigurationError
from herring.terminal.command_line import integer
from herring_lab.competitors import ALGORITHMS, PEERS, MissingLibraryError, missing
from herring_lab.emulate.cluster import ClusterError, signals_unwind
from herring_lab.emulate.limits import require_queue, require_rate
from herring_lab.emulate.options import add_queue
from herring_lab.progress import Progress
from herring_lab.report import Table, draw, output_folder, read, show, write
from herring_lab.study.bench import Network
from herring_lab.study.comparisons import COMPARISONS
from herring_lab.study.experiments import (
    DEFAULT_PEERS,
    EXPERIMENTS,
    Peer,
    Scale,
    allreduce,
    costs,
)
from herring_lab.study.gpu import gpu_study
from herring_lab.study.long_paths import long_paths
from herring_lab.study.moments import moments
from herring_lab.study.negotiation import HOSTS, negotiation
from herring_lab.study.networks import networks_study
from herring_lab.study.paper_tables import paper_tables
from herring_lab.study.partial import partial_study
from herring_lab.study.predictions import predictions
from herring_lab.study.training import cost_check, training

_MEASURED = {**EXPERIMENTS, "training": training, "cost-check": cost_check}
_ON_THIS_MACHINE = {
    "partial": lambda scale: partial_study(scale.quick, scale.report, scale.network),
    "networks": lambda scale: networks_study(scale.quick, scale.report),
    "predictions": predictions,
    "moments": lambda scale: moments(scale.quick, scale.iterations, scale.report),
    "gpu": lambda scale: gpu_study(scale.quick, scale.iterations, scale.report),
}
_DEFAULTS: dict[str, Any] = {"hosts": "2,4,8,16", "iterations": 7, "runs": 3}
_PATHS = {"long-paths": long_paths, **COMPARISONS}
_COMPUTED = ("cost", "paper-tables")
_QUICK_NOTE = (
    "made with --quick: the numbers show that everything runs; they are not measurements to keep"
)
_NAMES = [*_MEASURED, *_PATHS, "negotiation", "cost", "paper-tables", *_ON_THIS_MACHINE]

HELP = """\
examples:
  herring study line-rate allreduce --out study
      Fits the latency and rate of a link, and times every algorithm, Gloo, MPICH and Open MPI
      on 2 to 16 hosts.

  herring study training --rate 50mbit --queue 40ms --hosts 2,4,8,16
      Measures the scaling efficiency of training steps: workers average the gradients of
      BERT-large and sleep for the time that computing would take.

  herring study long-paths --iterations 20 --out study
      Compares self-controlled credit with fixed credit and Gloo's ring on hosts 50 us to 5 ms
      apart, with and without lost packets.

  herring study over-delay over-loss --iterations 20 --out study
  herring study over-hosts --hosts 2,4,8,12,16 --rate 100mbit --iterations 20 --out study
      Make the pictures of the documentation: Herring, its ring, Gloo's ring, and the limit.

  herring study --draw study/over-delay.json --out pictures
      Draws the picture again from the saved numbers, without measuring.

  herring study --quick --out /tmp/study
      Runs the default list (DEFAULT_LIST)
      on few hosts in two minutes, as a test of the setup. The figures are not meaningful.

  herring study negotiation --out study
      Averages the gradients of ResNet-50 and BERT-base as a plan, and with named operations that
      are announced in every step, on hosts 50 us to 5 ms apart.

  herring study partial networks --out study
      Measures partial all-reduces and trains with them (eager SGD), mostly on this machine
      without emulated hosts.

  herring study gpu --iterations 20 --out study
      Times all-reduces of 8 B to 256 MB on this machine's GPUs, with sums by GPU kernels and
      by the host's processors; then averages of gradients and steps of BERT-large, beside NCCL.

  herring study cost --nodes 64 --size 670e6 --rate 10gbit --compute 0.2 \\
      --node-price 31.2 --server-price 4.9
      Computes what dedicated servers cost and how much faster they make a step, from models.

  herring study predictions --iterations 20 --out study
      Runs 27 all-reduces on emulated hosts and 24 of them in virtual time, and compares.

  herring study moments --out study
      Times when each gradient of a BERT-base is produced in a backward pass on this machine,
      beside what table II of the Herring paper implies.

  herring study paper-tables
      Computes tables V and VI of the Herring paper: two points of each row calibrate a model,
      which predicts the others.

Emulated hosts need root, as 'herring lab' does. Plots need matplotlib. The other libraries need
torch (Gloo, NCCL), or mpi4py and an MPI with its launcher; a missing library is skipped.
The experiments training, networks, moments and gpu are skipped without torch, as is bfloat16 in
ablations.
""".replace("DEFAULT_LIST", ", ".join(_MEASURED))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``herring study`` to its parser."""
    parser.usage = "herring study [EXPERIMENT ...] [options]"
    parser.add_argument(
        "experiments",
        nargs="*",
        type=_experiment,
        metavar="EXPERIMENT",
        help=f"what to measure: {', '.join(_NAMES)} (default: {', '.join(_MEASURED)})",
    )
    parser.add_argument(
        "--out", default="study", metavar="DIR", help="folder for the results (default study)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="test the setup with few hosts and little data"
    )
    parser.add_argument(
        "--hosts",
        metavar="LIST",
        help=f"numbers of workers (default {_DEFAULTS['hosts']}; "
        f"negotiation: {','.join(map(str, HOSTS))})",
    )
    parser.add_argument(
        "--size",
        metavar="LIST",
        help="array sizes in bytes. Default: what a link carries in 0.25 s (long-paths, over-...: "
        "0.5 s; negotiation: 0.1 s; cost: 100 MB); 'allreduce' also measures 53 %% of that, as the "
        "papers have 100 and 53 MB. All other experiments use the largest size only.",
    )
    parser.add_argument(
        "--rate", default="200mbit", metavar="RATE", help="rate of each link (default 200mbit)"
    )
    add_queue(parser)
    parser.add_argument(
        "--iterations", type=integer, metavar="N", help="timed iterations per point (default 7)"
    )
    parser.add_argument(
        "--runs",
        type=integer,
        metavar="N",
        help="runs per point, whose median is shown, of over-..., of negotiation and of "
        "self-controlled credit in long-paths (default 3), and of allreduce (default 1)",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not print progress to standard error"
    )
    parser.add_argument(
        "--draw",
        nargs="+",
        metavar="JSON",
        help="draw the pictures of these saved tables again, without measuring",
    )
    parser.add_argument(
        "--peers",
        default=",".join(DEFAULT_PEERS),
        metavar="LIST",
        help="libraries that 'allreduce' compares with Herring. LIBRARY:ALGORITHM names its "
        f"algorithm; LIBRARY alone lets it choose (default {','.join(DEFAULT_PEERS)}). Libraries "
        "that are not installed are skipped.",
    )
    cost = parser.add_argument_group("cost, training and negotiation")
    cost.add_argument(
        "--nodes", type=integer, default=64, metavar="N", help="worker nodes (default 64)"
    )
    cost.add_argument(
        "--compute",
        type=_compute,
        metavar="TIME",
        help="time a step computes (default 0.2s; training: 4s; negotiation: as long as a link "
        "needs for the gradients)",
    )
    cost.add_argument(
        "--node-price",
        type=float,
        default=31.2,
        metavar="P",
        help="price of a node per hour (default 31.2)",
    )
    cost.add_argument(
        "--server-price",
        type=float,
        default=4.9,
        metavar="P",
        help="price of a server per hour (default 4.9)",
    )


def handle(options: argparse.Namespace) -> int:
    """Runs ``herring study``; returns the exit status.

    Raises:
      ConfigurationError: an option is wrong, or this machine cannot measure; the error says why.
    """
    _require_possible(options)
    if options.draw:
        return _draw(options.draw, options.out)
    with signals_unwind():
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    """Measures the experiments that were asked for, and writes their tables."""
    network = _network(options)
    given = {name: getattr(options, name) for name in _DEFAULTS}
    chosen = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
    hosts, iterations, runs = _hosts(chosen["hosts"]), chosen["iterations"], chosen["runs"]
    sizes = _sizes(options.size, network)
    if options.quick:
        hosts, iterations, runs = [2, 3], 2, 1
        sizes = [max(int(network.bandwidth / 50) // 4 * 4, 4)]
    names = options.experiments or list(_MEASURED)
    peers, skipped = _peers(options.peers) if "allreduce" in names else ([], [])
    if options.quick:
        peers = list({peer.library: peer for peer in reversed(peers)}.values())[::-1]
    folder = output_folder(options.out)
    progress = Progress(options.quiet)
    for line in skipped:
        progress.say(f"skipped: {line}")
    compute = options.compute
    scale = Scale(
        hosts,
        max(sizes),
        network,
        iterations,
        progress,
        peers,
        skipped,
        quick=options.quick,
        runs=runs,
        compute_seconds=compute if compute is not None else 0.2 if options.quick else 4.0,
        node_price=options.node_price,
        server_price=options.server_price,
    )
    unmeasured = []
    for name in names:
        start = time.monotonic()
        progress.begin(name)
        try:
            tables = _tables(name, scale, options, sizes)
        except MissingLibraryError as error:
            unmeasured.append(str(error))
            print(f"{name}: skipped: {error}\n", flush=True)
            continue
        except ClusterError as error:
            raise ConfigurationError(f"{name}: {error}") from None
        finally:
            progress.clear()
        if options.quick and name not in _COMPUTED:
            tables = [
                dataclasses.replace(table, notes=[_QUICK_NOTE, *table.notes]) for table in tables
            ]
        files = ", ".join(str(path) for table in tables for path in write(table, folder, options))
        show(tables)
        print(f"{name}: {show_time(time.monotonic() - start)}; {files}\n", flush=True)
    if len(unmeasured) == len(names):
        raise ConfigurationError(f"nothing was measured: {'; '.join(unmeasured)}")
    return 0


def _tables(name: str, scale: Scale, options: argparse.Namespace, sizes: list[int]) -> list[Table]:
    """Measures the experiment called `name` and returns its tables."""
    if name in _ON_THIS_MACHINE:
        return _ON_THIS_MACHINE[name](scale)
    if name in _PATHS:
        size = max(sizes) if options.size or options.quick else int(scale.network.bandwidth / 2)
        return [_PATHS[name](scale, size // 4 * 4)]
    if name == "negotiation":
        return _negotiation(scale, options)
    if name == "cost":
        return [_cost(options, max(sizes) if options.size else 1e8, scale.network)]
    if name == "paper-tables":
        return paper_tables()
    if name == "allreduce":
        runs = options.runs or 1  # most others measure less
        return [allreduce(dataclasses.replace(scale, size=size, runs=runs)) for size in sizes]
    return [_MEASURED[name](scale)]


def _draw(files: list[str], out: str) -> int:
    """Draws the pictures of saved tables again, and skips tables without a picture."""
    tables = [read(pathlib.Path(file)) for file in files]
    if all(table.chart is None for table in tables):
        raise ConfigurationError(f"--draw: no picture belongs to {', '.join(files)}")
    folder = output_folder(out)
    for file, table in zip(files, tables):
        if table.chart is None:
            print(f"herring study: skipped {file}: no picture belongs to it", file=sys.stderr)
            continue
        drawn = draw(table, folder)
        if not drawn:
            raise ConfigurationError("--draw needs matplotlib: pip install matplotlib")
        print(drawn[0])
    return 0


def _require_possible(options: argparse.Namespace) -> None:
    """Refuses impossible numbers and options that contradict each other."""
    for name in ("iterations", "runs", "nodes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} {value}: give at least 1")
    for name, least in (("compute", "give 0 or more"), ("server_price", "give 0 or more")):
        value = getattr(options, name)
        if value is not None and not 0 <= value < math.inf:
            raise ConfigurationError(f"--{name.replace('_', '-')} {value:g}: {least}")
    if not 0 < options.node_price < math.inf:
        raise ConfigurationError(f"--node-price {options.node_price:g}: give more than 0")
    if options.draw and options.experiments:
        raise ConfigurationError(
            f"--draw measures nothing: leave {' '.join(options.experiments)} out, or --draw itself"
        )
    given = [f"--{name}" for name in (*_DEFAULTS, "size") if getattr(options, name) is not None]
    if options.quick and given:
        raise ConfigurationError(
            f"--quick chooses hosts, size, iterations and runs: leave out {', '.join(given)} or "
            "--quick"
        )


def _network(options: argparse.Namespace) -> Network:
    network = Network(
        parse_option("--rate", parse_rate, options.rate),
        parse_option("--queue", parse_seconds, options.queue),
    )
    require_rate(network.rate_bits)
    require_queue(network.queue_seconds)
    return network


def _compute(text: str) -> float:
    return argument(lambda given: parse_seconds(given, zero=True))(text)


def _experiment(text: str) -> str:
    # argparse's `choices` would not do: Python 3.11 checks the empty list of no arguments too.
    if text not in _NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(_NAMES)}")
    return text


def _hosts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) if part.isascii() and part.isdecimal() else 0 for part in parts]
    if min(numbers) < 2 or max(numbers) > 100:
        raise ConfigurationError(f"--hosts {text!r}: write numbers from 2 to 100, as in 2,4,8")
    return list(dict.fromkeys(numbers))


def _peers(text: str) -> tuple[list[Peer], list[str]]:
    """Returns the libraries that are installed, and a line for each one that is missing."""
    found, skipped = [], {}
    for part in filter(None, text.split(",")):
        library, _, algorithm = part.strip().partition(":")
        if library not in PEERS:
            raise ConfigurationError(
                f"--peers {library!r} is not known: choose from {', '.join(PEERS)}"
            )
        if algorithm and algorithm not in ALGORITHMS[library]:
            has = ", ".join(ALGORITHMS[library]) or "none to choose"
            raise ConfigurationError(f"--peers {part!r}: {library} has {has}")
        reason = missing(library)
        if reason:
            skipped[library] = f"{library}: {reason}"
        else:
            found.append(Peer(library, algorithm or None))
    return found, list(skipped.values())


def _sizes(text: str | None, network: Network) -> list[int]:
    if text is None:
        sizes = [0.53 * network.bandwidth / 4, network.bandwidth / 4]
    else:
        sizes = [parse_option("--size", parse_size, part) for part in text.split(",")]
    if not all(4 <= size < 1e15 for size in sizes):
        raise ConfigurationError(f"--size {text!r}: write bytes, at least 4, as in 3.3M,6.25M")
    return [int(size) // 4 * 4 for size in sizes]


def _negotiation(scale: Scale, options: argparse.Namespace) -> list[Table]:
    bandwidth = scale.network.bandwidth
    chosen = options.quick or options.size
    size = scale.size if chosen else int(bandwidth / 10) // 4 * 4
    if not (options.quick or options.hosts):
        scale = dataclasses.replace(scale, hosts=HOSTS)
    # By default computing takes as long as a link needs for the gradients.
    compute = size / bandwidth if options.compute is None else options.compute
    return negotiation(scale, size, compute)


def _cost(options: argparse.Namespace, size: float, network: Network) -> Table:
    return costs(
        options.nodes,
        size,
        network.bandwidth,
        options.compute if options.compute is not None else 0.2,
        options.node_price,
        options.server_price,
    )
