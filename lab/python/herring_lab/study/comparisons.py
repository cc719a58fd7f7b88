"""Makes the main comparisons: Herring, its ring and Gloo's ring beside the limit.

There is one picture over the number of hosts, one over the delay between hosts, and one over lost
packets. The curves of a picture differ only in the library and algorithm; hosts, links and bytes
are the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from herring.bench import models
from herring_lab.competitors import missing
from herring_lab.report import Chart, Table
from herring_lab.study.bench import Network
from herring_lab.study.cases import Case, Times, counted, measure_cases, show_delay
from herring_lab.study.experiments import Scale

#: One-way delays between any two hosts, in seconds.
DELAYS = (50e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3)
#: Probabilities that a packet is lost.
LOSSES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_LOSS_DELAY = 500e-6  # one-way delay of the paths that lose packets, in seconds
_WARMUP = 5
_Setting = tuple[float, str, int, Network]  # place on the axis, words, workers, links
_NAMES = {
    "herring": "Herring",
    "ring": "ring (Herring's)",
    "gloo": "ring (Gloo's)",
    "model_limit": "limit M/B",
    "model_ring": "ring: 2 (n-1)/n M/B",
}


def over_hosts(scale: Scale, size: int) -> Table:
    """Times an all-reduce over the number of workers; Herring has as many servers in addition."""
    title = f"{size / 1e6:.4g} MB, links of {scale.network.rate_bits / 1e6:g} Mbit/s"
    settings = [(n, f"{n} workers", n, scale.network) for n in sorted(set(scale.hosts))]
    chart = _chart("hosts", "number of workers, one per host", ["model_limit", "model_ring"])
    return _compare(scale, size, "over-hosts", title, settings, chart)


def over_delay(scale: Scale, size: int) -> Table:
    """Times an all-reduce over the delay between hosts, on strict links."""
    chart = _chart("one_way_ms", "delay between hosts, one way (ms)", ["model_limit"], "log")
    settings = [
        _strict(scale, 1e3 * delay, f"{show_delay(delay)} one way", delay, 0.0)
        for delay in _some(scale, DELAYS)
    ]
    title = f"{size / 1e6:.4g} MB, {_on_strict_links(scale)}"
    return _compare(scale, size, "over-delay", title, settings, chart)


def over_loss(scale: Scale, size: int) -> Table:
    """Times an all-reduce over the share of lost packets, on strict links."""
    chart = _chart("loss_percent", "packets lost at random (%)", ["model_limit"], "symlog")
    settings = [
        _strict(scale, 100 * loss, f"{100 * loss:g} % lost", _LOSS_DELAY, loss)
        for loss in _some(scale, LOSSES)
    ]
    title = f"{size / 1e6:.4g} MB, {_on_strict_links(scale)}, {show_delay(_LOSS_DELAY)} one way"
    return _compare(scale, size, "over-loss", title, settings, chart)


COMPARISONS = {"over-hosts": over_hosts, "over-delay": over_delay, "over-loss": over_loss}


def _compare(
    scale: Scale,
    size: int,
    name: str,
    title: str,
    settings: Sequence[_Setting],
    chart: Chart,
) -> Table:
    """Measures all kinds at each setting."""
    warmup = 1 if scale.quick else _WARMUP
    reason = missing("gloo")
    cases = [Case("herring", scale.runs), Case("ring", scale.runs, algorithm="ring")]
    cases += [] if reason else [Case("gloo", scale.runs, "gloo")]
    columns = [case.column for case in cases]
    begin = counted(scale.report, len(settings) * len(cases) * scale.runs)
    rows, void = [], []
    for place, where, workers, network in settings:
        count = scale.iterations
        times = measure_cases(network, cases, workers, size, count, warmup, begin, where)
        rows.append(_row(chart, place, workers, size, network, columns, times))
        void += times.void
    notes = [
        f"seconds: the median of {scale.iterations} rounds after {warmup}; of {scale.runs} runs "
        "the median, and the slowest",
        "Herring has as many dedicated servers as workers, each on a host with a link of its own; "
        "the rings run over the workers alone",
        *([f"skipped: gloo: {reason}"] if reason else []),
        *void,
    ]
    y = [column for column in chart.y if not (reason and column == "gloo")]
    return Table(name, f"All-reduce of {title}", rows, dataclasses.replace(chart, y=y), notes)


def _row(
    chart: Chart,
    place: float,
    workers: int,
    size: int,
    network: Network,
    columns: Sequence[str],
    times: Times,
) -> dict[str, Any]:
    row: dict[str, Any] = {chart.x: place}
    limit = models.herring_time(workers, size, network.bandwidth)
    row["model_limit"] = limit
    row["model_ring"] = models.ring_time(workers, size, network.bandwidth)
    for column in columns:
        row[column] = times.median(column)
        row[f"{column}_slowest"] = times.worst(column)
    own = row["herring"]
    row["herring_by_limit"] = own / limit if own else None
    for column in columns[1:]:
        row[f"{column}_by_herring"] = row[column] / own if own and row[column] else None
    return row


def _chart(x: str, x_name: str, model: list[str], x_scale: str = "linear") -> Chart:
    y = ["herring", "ring", "gloo", *model]
    return Chart(x, y, x_name, "time of an all-reduce (s)", x_scale=x_scale, names=_NAMES)


def _strict(scale: Scale, place: float, where: str, delay: float, loss: float) -> _Setting:
    """Returns a setting on strict links."""
    network = dataclasses.replace(scale.network, delay=delay, loss=loss, strict=True)
    return place, where, _workers(scale), network


def _some(scale: Scale, values: Sequence[float]) -> Sequence[float]:
    return values[1:3] if scale.quick else values


def _workers(scale: Scale) -> int:
    return 2 if scale.quick else 4


def _on_strict_links(scale: Scale) -> str:
    workers = _workers(scale)
    rate = scale.network.rate_bits / 1e6
    return f"{workers} workers, strict links of {rate:g} Mbit/s"
