"""The command ``herring simulate``: reads the options, and prints the answer."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from herring.base.provenance import provenance
from herring.base.units import parse_option, parse_rate, parse_seconds, parse_share, parse_size
from herring.errors import ConfigurationError
from herring_lab.progress import Progress
from herring_lab.report import output_folder, show, write
from herring_lab.simulate import catalogue
from herring_lab.simulate.answer import Job, Prices, best_servers
from herring_lab.simulate.bert import FORWARD_PART
from herring_lab.simulate.network import Network, load_costs
from herring_lab.simulate.options import DTYPES, HELP, SWEEPS, add_options
from herring_lab.simulate.show import answer_text, assumptions, document, servers_table
from herring_lab.simulate.sweep import parse_sweep, table

__all__ = ["HELP", "add_options", "handle", "job_of", "network_of", "prices_of"]


def handle(options: argparse.Namespace) -> int:
    """Runs ``herring simulate``; returns the exit status.

    Raises:
      ConfigurationError: an option is wrong or contradicts another; the error says which, and what
        is allowed.
    """
    if options.list_models:
        _list_models(options.json)
        return 0
    sweep = parse_sweep(options.sweep) if options.sweep else None
    for name in SWEEPS:
        if sweep and sweep.kind == name and getattr(options, name) is not None:
            raise ConfigurationError(
                f"--{name} and --sweep {options.sweep}: give only one of the two"
            )
    job = job_of(options)
    network, source = network_of(options)
    prices = prices_of(options, network.servers)
    folder = output_folder(options.out) if options.out else None
    # Progress is for people: the command may take seconds.
    progress = Progress(quiet=options.json or not sys.stderr.isatty())
    if sweep:
        as_many = options.servers is None
        found, answers = table(job, network, sweep, as_many, prices, progress)
    else:
        best = best_servers(job, network, prices, progress)
        answers = [each for each in best.tried if each.network.servers == network.servers]
        found = servers_table(best, prices)
    progress.clear()
    lines = assumptions(answers, source, prices)
    found = dataclasses.replace(found, notes=lines)
    if options.json:
        made = document(answers, prices, None if sweep else best, lines)
        print(json.dumps({**made, "provenance": provenance(options)}, indent=1))
    elif sweep:
        show([found])
    else:
        print(answer_text(best, answers[0], prices))
        show([found])
    if folder is not None:
        files = write(found, folder, options)
        if not options.json:
            print(", ".join(map(str, files)))
    return 0


def job_of(options: argparse.Namespace) -> Job:
    """Returns the job that the options describe.

    Raises:
      ConfigurationError: --model and --size are both given or both missing, or a value is wrong.
    """
    if (options.model is None) == (options.size is None):
        both = f"--model {options.model} and --size {options.size}: " if options.model else ""
        raise ConfigurationError(f"{both}give one of --model NAME and --size BYTES")
    wire = options.wire_dtype or options.dtype
    itemsize = DTYPES[options.dtype]
    if options.model is not None:
        name, gradients = options.model, catalogue.gradients(options.model)
    else:
        size = parse_option("--size", parse_size, options.size)
        if not 64 <= size <= 10**13:
            raise ConfigurationError(f"--size {options.size}: allowed are 64 bytes to 10 TB")
        name, gradients = options.size, catalogue.even_gradients(size // itemsize)
    backward = 1 - FORWARD_PART if options.backward is None else options.backward
    step = 0.0
    if options.step is not None:
        step = parse_option("--step", lambda text: parse_seconds(text, zero=True), options.step)
    if options.backward is not None and not step:
        raise ConfigurationError(
            f"--backward {options.backward:g} is a part of --step TIME, which is missing"
        )
    return Job(name, tuple(gradients), step, backward, options.dtype, wire, options.meet_every)


def network_of(options: argparse.Namespace) -> tuple[Network, str]:
    """Returns the hosts and links, and the source of the processor costs.

    Raises:
      ConfigurationError: a value is impossible or contradicts another.
    """
    if options.server_rate is not None and options.servers == 0:
        raise ConfigurationError(f"--server-rate {options.server_rate} with --servers 0: no server")
    if options.node_rate is not None and options.gpus_per_node == 1:
        raise ConfigurationError(
            f"--node-rate {options.node_rate} with one worker per node: nodes have nothing to sum"
        )
    if options.seed < 0:
        raise ConfigurationError(f"--seed {options.seed}: give 0 or more")
    rate = parse_option("--rate", parse_rate, options.rate or "100gbit")
    own = options.server_rate
    nodes = 8 if options.nodes is None else options.nodes
    values: dict[str, Any] = {
        "rate": rate,
        "server_rate": rate if own is None else parse_option("--server-rate", parse_rate, own),
        "rtt": parse_option(
            "--rtt", lambda text: parse_seconds(text, zero=True), options.rtt or "50us"
        ),
        "late": parse_option(
            "--late", lambda text: parse_seconds(text, zero=True), options.late or "0"
        ),
        "loss": parse_option("--loss", parse_share, options.loss or "0%"),
        "mtu": parse_option("--mtu", parse_size, options.mtu),
        "proxies": options.proxies,
        "seed": options.seed,
    }
    if options.buffer:
        values["buffer"] = _buffer(options.buffer, rate)
    if options.node_rate:
        text = options.node_rate.removesuffix("/s")
        values["node_rate"] = float(parse_option("--node-rate", parse_size, text))
    source = "measured on a machine with two, see docs/benchmarks.md"
    if options.costs:
        values["costs"], source = load_costs(options.costs)
    servers = nodes if options.servers is None else options.servers
    return Network(nodes, options.gpus_per_node, servers, **values), source


def prices_of(options: argparse.Namespace, servers: int) -> Prices | None:
    """Returns the prices; None if none are given.

    Raises:
      ConfigurationError: one of the two prices is missing, or a price is below 0.
    """
    node, server = options.node_price, options.server_price
    if node is None and server is None:
        return None
    if node is None or server is None:
        missing = "--node-price" if node is None else "--server-price"
        raise ConfigurationError(
            f"{missing} is missing: a step's cost needs both prices; 0 is allowed"
        )
    for name, price in (("--node-price", node), ("--server-price", server)):
        if not 0 <= price < 1e9:
            raise ConfigurationError(f"{name} is {price:g}; it must be from 0 to 1e9 per hour")
    return Prices(node, server)


def _buffer(text: str, rate: float) -> float:
    """Returns the bytes of a port's buffer, given as bytes or as a time at the link's rate."""
    if text.strip().lower().endswith("s"):
        return parse_option("--buffer", parse_seconds, text) * rate / 8
    return float(parse_option("--buffer", parse_size, text))


def _list_models(as_json: bool) -> None:
    rows = []
    for name, entry in catalogue.MODELS.items():
        made = entry.make()
        rows.append(
            {
                "model": name,
                "parameters": entry.parameters,
                "gradients": len(made),
                "largest": max(each.elements for each in made),
                "source": entry.source,
            }
        )
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['model']:13}{row['parameters']:14,} parameters in {row['gradients']:3} "
            f"gradients, the largest of {row['largest']:,}\n{'':13}{row['source']}"
        )
