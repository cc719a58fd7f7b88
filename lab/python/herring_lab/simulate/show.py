"""Formats answers for people and as JSON, with their assumptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from herring.base.units import show_rate
from herring_lab.report import Chart, Table
from herring_lab.simulate.answer import Answer, Best, Prices
from herring_lab.simulate.network import PEERS, Network

_WORTH_A_WORD = 1.01  # factor by which a step must be longer to be told of
_BINDS = {
    "computing": "averaging is hidden behind computing",
    "node": "what a node does inside, before and after the network",
    "link": "the nodes' links",
    "servers' link": "the servers' links",
    "processor": "processors that handle frames (--proxies gives a server more)",
    "latency": "waiting for answers: round trips, or too little outstanding (HERRING_CREDIT_MAX)",
    "loss": "recoveries and timeouts after lost packets",
    "last gradient": "the last gradient can only be averaged after the backward pass",
}


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.4g} s"
    return f"{1e3 * seconds:.4g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.4g} us"


def _bytes(size: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} bytes"


def where(network: Network) -> str:
    """Returns a line that describes the hosts and the network between them."""
    parts = [f"{_many(network.nodes, 'node')} of {_many(network.workers, 'worker')}"]
    kind = "dedicated server"
    if network.servers < network.nodes > 1:
        kind += f"{'' if network.servers == 1 else 's'} and {network.nodes:,} colocated one"
        parts.append(f"{network.servers:,} {kind}{'' if network.nodes == 1 else 's'}")
    else:
        parts.append(_many(network.servers, kind))
    rates = show_rate(network.rate)
    if network.servers and network.server_rate != network.rate:
        rates += f" (servers {show_rate(network.server_rate)})"
    parts += [rates, f"round trip {_duration(network.rtt)}"]
    if network.loss:
        parts.append(f"{100 * network.loss:g} % of packets lost")
    return ", ".join(parts)


def _formula(network: Network) -> str:
    if network.nodes == 1:
        return "nothing is sent"
    colocated = network.servers < network.nodes
    text = "2n(n-1)M / ((n^2+kn-2k)B)" if colocated else "M/B"
    unequal = network.servers and network.server_rate != network.rate
    return text + (", or the servers' links where they take longer" if unequal else "")


def answer_text(best: Best, found: Answer, prices: Prices | None) -> str:
    """Returns the answer for the given number of servers, as text."""
    network, job, timeline = found.network, found.job, found.timeline
    buffers = found.buffers
    lines = [where(network)]
    lines.append(
        f"{job.name}: {job.elements:,} parameters, {_bytes(job.size)} of {job.wire_dtype} on the "
        f"wire in {_many(len(buffers), 'fusion buffer')} of {_bytes(buffers[0].size)}"
    )
    if job.meet_every > 1:
        lines.append(
            f"ranks meet after every {job.meet_every:,} steps, and times are of a mean step"
        )
    lines.append("")
    rows: list[tuple[str, str, str]] = []
    if job.step > 0:
        after = f"computing {_duration(job.step)}, then {_duration(timeline.exposed)} of waiting"
        rows.append(("step", _duration(timeline.seconds), after))
        rows.append(("efficiency", f"{100 * (found.efficiency or 0):.1f} %", "computing / step"))
    else:
        rows.append(("average", _duration(timeline.seconds), "all gradients, there at once"))
    if found.herring:
        rows.append(
            (
                "network",
                _duration(found.herring.seconds),
                f"for a whole round; the limit {_formula(network)} is {_duration(found.limit)}",
            )
        )
    rows.append(("binds", found.binds, _BINDS[found.binds]))
    if found.binds == "loss" and found.least_outstanding > network.buffer:
        text = f"a segment of each of {_many(network.nodes, 'node')}, towards each server: more "
        rows.append(
            ("", _bytes(found.least_outstanding), f"{text}than a port's {_bytes(network.buffer)}")
        )
    rows.append(
        ("sent per node", _bytes(found.node_bytes), "in a step, and as much received at once")
    )
    if prices:
        price = prices.of_step(network, timeline.seconds)
        hourly = (
            f"{network.nodes:,} x {prices.node:g} + {network.servers:,} x {prices.server:g} an hour"
        )
        rows.append(
            ("price", f"{1000 * price:.4g}", f"of 1,000 steps ({price:.4g} each): {hourly}")
        )
    unit = "a step" if job.step > 0 else "an average"
    servers = f"{best.by_time.network.servers:,}"
    by_time = f"by time: {_duration(best.by_time.timeline.seconds)} {unit}"
    shortest = min(best.tried, key=lambda each: each.timeline.seconds)
    if shortest.timeline.seconds < best.by_time.timeline.seconds:
        by_time += (
            f"; {shortest.network.servers:,} would give {_duration(shortest.timeline.seconds)}, "
            "less than 1 % better"
        )
    rows.append(("best servers", servers, by_time))
    if prices and best.by_cost:
        price = prices.of_step(best.by_cost.network, best.by_cost.timeline.seconds)
        rows.append(
            (
                "",
                f"{best.by_cost.network.servers:,}",
                f"by price: {1000 * price:.4g} for 1,000 steps",
            )
        )
    for name, seconds in best.peers.items():
        text = ""
        if name == PEERS[0]:
            text = "all-reduces without servers: models, see below"
            if (wire := job.of_peers().wire_dtype) != job.wire_dtype:
                text += f"; they send {wire}"
            if best.usual_ring > _WORTH_A_WORD * seconds:
                text += f"; {_duration(best.usual_ring)} in buffers of 25 MiB or more"
        rows.append((name, _duration(seconds), text))
    for other in filter(None, (best.shallow, best.deep)):
        text = f"if switch ports hold {_bytes(other.network.buffer)}: {other.binds}"
        rows.append(("", _duration(other.timeline.seconds), text))
    lines += [f"{name:15}{value:15}{text}".rstrip() for name, value, text in rows]
    return "\n".join(lines) + "\n"


def servers_table(best: Best, prices: Prices | None) -> Table:
    """Returns the table over the numbers of dedicated servers that were tried."""
    first = best.tried[0]
    rows = []
    for each in best.tried:
        row: dict[str, Any] = {
            "servers": each.network.servers,
            "step_seconds": each.timeline.seconds,
            "efficiency": each.efficiency,
            "network_seconds": each.herring.seconds if each.herring else None,
            "model_limit_seconds": each.limit,
            "binds": each.binds,
        }
        if prices:
            price = prices.of_step(each.network, each.timeline.seconds)
            row["price_per_1000_steps"] = 1000 * price
        rows.append(row)
    names = {
        "step_seconds": "step, simulated",
        "network_seconds": "averaging alone, simulated",
        "model_limit_seconds": "averaging, limited by links alone",
    }
    if first.job.step == 0:
        names["step_seconds"] = "average, simulated"
    chart = Chart(
        "servers",
        list(names),
        "dedicated servers (number)",
        "time (s)",
        names=names,
        computed=True,
    )
    nodes = _many(first.network.nodes, "node")
    return Table("simulate-servers", f"{first.job.name} on {nodes}: servers", rows, chart, [])


def assumptions(answers: Sequence[Answer], source: str, prices: Prices | None) -> list[str]:
    """Returns the assumptions of the answers, a line for each.

    Args:
      answers: the answers that are shown.
      source: where the processor costs are from.
      prices: the prices; None without prices.
    """
    first = answers[0]
    network, job = first.network, first.job
    lines = [
        "nothing was measured: averaging is the coarse model (lab/docs/simulate.md), a job in "
        f"virtual time with the library's plan and self-controlled credit, seed {network.seed}",
        "a round's pace is what the controller reaches after some seconds of training; the first "
        "steps of a job are slower",
        "all links of a kind are equal, no other traffic uses them, and the switches between them "
        f"carry everything; a port holds {_bytes(network.buffer)}, a packet {network.mtu} bytes",
    ]
    costs = network.costs
    cores = f"{costs.cores:g} cores" if costs.cores else "a core per worker, and per proxy"
    lines.append(
        f"processors ({source}): {_duration(costs.frame)} per frame, {1e9 * costs.byte:.3g} ns per "
        f"byte, {_duration(costs.wakeup)} per wake-up, {cores}; 'herring simulate --costs FILE' "
        "reads those of your machine"
    )
    if network.workers > 1:
        lines.append(
            "inside a node buffers are summed and results are copied back at "
            f"{_bytes(network.node_rate)}/s each way (default: four PCIe links of 12 GB/s, as in "
            "the paper, section III-A)"
        )
    if job.step > 0:
        lines.append(
            f"the backward pass is {job.backward:.3g} of the {job.step:g} s; gradients come in the "
            "model's order, when their layers' multiplications are done; --step includes the "
            "optimizer's time"
        )
    if job.meet_every > 1:
        lines.append(
            f"everything is sent after every {job.meet_every:,}th step, and all wait for it; the "
            "outer optimizer takes no time, and loss per step is another matter"
        )
    if network.late:
        lines.append(
            f"the slowest node is {_duration(network.late)} later each time the node count "
            "doubles; on one node nobody waits"
        )
    else:
        lines.append(
            "all workers are equally fast, so none waits for a slow one (--late changes this)"
        )
    lines.append(
        f"{', '.join(PEERS)} are models with the links, headers, processors and latency from "
        "above, but without losses and full buffers; the tree works level by level; each averages "
        "in buffers of 25 MiB, of 64 MiB, as small as Herring's or all at once, whichever is best; "
        "the ring runs over all "
        "workers, with free hops inside a node, the others over nodes (hierarchical: a ring)"
    )
    if prices:
        lines.append(f"prices per hour: {prices.node:g} a node, {prices.server:g} a server")
    return lines


def document(
    answers: Sequence[Answer], prices: Prices | None, best: Best | None, lines: Sequence[str]
) -> dict[str, Any]:
    """Returns the document that ``--json`` prints, with answers and assumptions."""
    result: dict[str, Any] = {"answers": [_one(each, prices) for each in answers]}
    if best:
        result["best_servers_by_time"] = best.by_time.network.servers
        result["best_servers_by_price"] = best.by_cost.network.servers if best.by_cost else None
        result["peers_step_seconds"] = best.peers
        result["tried"] = [_one(each, prices) for each in best.tried]
    return {**result, "assumed": list(lines)}


def _one(found: Answer, prices: Prices | None) -> dict[str, Any]:
    price = prices.of_step(found.network, found.timeline.seconds) if prices else None
    return {
        "network": dataclasses.asdict(found.network),
        "model": found.job.name,
        "parameters": found.job.elements,
        "bytes": found.job.size,
        "fusion_buffers": len(found.buffers),
        "step_seconds": found.timeline.seconds,
        "exposed_seconds": found.timeline.exposed,
        "efficiency": found.efficiency,
        "averaging_seconds": found.herring.seconds if found.herring else 0.0,
        "limit_seconds": found.limit,
        "window_bytes": found.herring.window if found.herring else None,
        "binds": found.binds,
        "bytes_per_node": found.node_bytes,
        "price_per_step": price,
    }
