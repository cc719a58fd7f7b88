"""Varies one thing, and tabulates Herring's steps beside those of classic all-reduces."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

from herring.base.units import counted, parse_rate, parse_seconds, parse_share
from herring.errors import ConfigurationError
from herring_lab.report import Chart, Table
from herring_lab.simulate.answer import Answer, Job, Prices, answer, peer_steps
from herring_lab.simulate.network import PEERS, Network

_MOST = 100  # points
_STEP = re.compile(r"[x*](\d+(?:\.\d+)?)")


def _count(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigurationError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _time(text: str) -> float:
    return parse_seconds(text, zero=True)


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Something to vary: its field of `Network`, its parser, its column and its label."""

    field: str
    read: Callable[[str], float]
    column: str
    name: str
    scale: float = 1.0  # from the field's unit to the unit that is shown


SWEPT = {
    "nodes": _Kind("nodes", _count, "nodes", "nodes (number)"),
    "servers": _Kind("servers", _count, "servers", "dedicated servers (number)"),
    "rate": _Kind("rate", parse_rate, "rate_gbit", "rate of a link (Gbit/s)", 1e-9),
    "rtt": _Kind("rtt", _time, "round_trip_us", "round trip (us)", 1e6),
    "loss": _Kind("loss", parse_share, "loss_percent", "packets lost (%)", 100),
}


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The values of the thing that is varied.

    Attributes:
      kind: one of `SWEPT`.
      values: the values of its field, in ascending order.
    """

    kind: str
    values: Sequence[float]


def parse_sweep(text: str) -> Sweep:
    """Reads ``nodes=2..12800``, ``rtt=10us..10ms:x10``, ``nodes=8..64:8`` or ``loss=0%,0.1%``.

    Raises:
      ConfigurationError: the text has none of these forms; the error says what is allowed.
    """
    name, equals, rest = text.partition("=")
    if not equals or name not in SWEPT:
        raise ConfigurationError(
            f"--sweep {text!r}: write one of {', '.join(SWEPT)}, then = and values, as in "
            "nodes=2..12800 or rtt=50us,500us,5ms"
        )
    kind = SWEPT[name]
    try:
        if ".." in rest:
            values = _range(rest, kind)
        else:
            values = [kind.read(part) for part in rest.split(",")]
    except ConfigurationError as error:
        raise ConfigurationError(f"--sweep {text}: {error}") from None
    if len(values) > _MOST:
        raise ConfigurationError(f"--sweep {text}: {len(values)} values; at most {_MOST}")
    return Sweep(name, sorted(set(values)))


def _range(text: str, kind: _Kind) -> list[float]:
    """Reads ``LOW..HIGH``, which doubles; ``:STEP`` after it adds STEP, ``:xN`` multiplies by N."""
    ends, _, step = text.partition(":")
    low_text, _, high_text = ends.partition("..")
    low, high = kind.read(low_text), kind.read(high_text)
    if low > high:
        raise ConfigurationError(f"{low_text} is more than {high_text}")
    factor, added = 2.0, 0.0
    if match := _STEP.fullmatch(step):
        factor = float(match.group(1))
        if factor <= 1:
            raise ConfigurationError(f"a factor must be more than 1, not {factor:g}")
    elif step:
        added = kind.read(step)
        if not added > 0:
            raise ConfigurationError(f"a step must be more than 0, not {step}")
    if not low > 0 and not added:
        raise ConfigurationError(
            f"{low_text} cannot be doubled: give a step, as in {ends}:{high_text}, or a list"
        )
    values = [low]
    while values[-1] < high and len(values) <= _MOST:
        following = values[-1] + added if added else values[-1] * factor
        following = round(following) if isinstance(low, int) else following
        # The end is included, even between steps, and rounding errors do not add a point before it.
        values.append(high if following > high * (1 - 1e-9) else following)
    return values


def at(network: Network, sweep: Sweep, value: float, as_many_servers: bool) -> Network:
    """Returns the network with another value of the thing that is varied.

    Args:
      network: the network that the options describe.
      sweep: the thing that is varied.
      value: its value.
      as_many_servers: whether there are as many servers as nodes, because no number was given.
    """
    changed: dict[str, Any] = {SWEPT[sweep.kind].field: value}
    if sweep.kind == "rate" and network.server_rate == network.rate:
        changed["server_rate"] = value
    if sweep.kind == "nodes":
        nodes = int(value)
        changed["servers"] = nodes if as_many_servers else min(network.servers, nodes)
    return dataclasses.replace(network, **changed)


def table(
    job: Job,
    network: Network,
    sweep: Sweep,
    as_many_servers: bool,
    prices: Prices | None,
    report: Callable[[int, int, str], None],
) -> tuple[Table, list[Answer]]:
    """Computes an answer for every value.

    Args:
      job: the job that runs.
      network: the network whose other values stay.
      sweep: the thing that is varied, and its values.
      as_many_servers: whether there are as many servers as nodes, because no number was given.
      prices: prices for a column with the price of a step; None: no such column.
      report: called before each point is computed, with (done, all, what).

    Returns:
      A table with a row per value, and the answers.
    """
    kind = SWEPT[sweep.kind]
    # All networks are made before the first is computed, because a value may be impossible.
    networks = [at(network, sweep, value, as_many_servers) for value in sweep.values]
    rows, answers = [], []
    for index, here in enumerate(networks):
        shown = getattr(here, kind.field) * kind.scale
        report(index, len(networks), f"{kind.name.partition(' (')[0]} {shown:g}")
        found = answer(job, here)
        answers.append(found)
        row: dict[str, Any] = {kind.column: shown if kind.scale != 1.0 else int(shown)}
        if sweep.kind == "nodes":
            row["servers"] = here.servers
        row |= {"step_seconds": found.timeline.seconds, "efficiency": found.efficiency}
        row["binds"] = found.binds
        if prices:
            row["price_per_1000_steps"] = 1000 * prices.of_step(here, found.timeline.seconds)
        row |= {f"model_{name}_seconds": seconds for name, seconds in peer_steps(found).items()}
        row["model_limit_step_seconds"] = found.limit_step
        rows.append(row)
    fixed = _fixed(network, sweep.kind)
    zero = sweep.values[0] == 0
    chart = Chart(
        kind.column,
        ["step_seconds", *(f"model_{name}_seconds" for name in PEERS), "model_limit_step_seconds"],
        kind.name,
        "time of a step (s)" if job.step > 0 else "time of an average (s)",
        x_scale="symlog" if zero else "log",
        y_scale="log",
        names={
            "step_seconds": "Herring, simulated",
            "model_limit_step_seconds": "Herring, limited by links alone",
            **{f"model_{name}_seconds": name for name in PEERS},
        },
        computed=True,
    )
    title = f"{job.name}, {job.step:g} s per step, {fixed}"
    if job.meet_every > 1:
        title = f"{job.name}, {job.step:g} s per step, meeting every {job.meet_every:,}, {fixed}"
    if job.step == 0:
        title = f"{job.name}, averaging alone, {fixed}"
    return Table(f"simulate-{sweep.kind}", title, rows, chart), answers


def _fixed(network: Network, varied: str) -> str:
    parts = {
        "nodes": counted(network.nodes, "node"),
        "servers": counted(network.servers, "server") if varied != "nodes" else "",
        "workers": f"{counted(network.workers, 'worker')} per node",
        "rate": f"{network.rate / 1e9:g} Gbit/s",
        "rtt": f"round trip {network.rtt * 1e6:g} us",
        "loss": f"{100 * network.loss:g} % lost" if network.loss else "",
    }
    return ", ".join(text for name, text in parts.items() if text and name != varied)
