"""Long and lossy paths: self-controlled credit beside fixed sizes of it, and beside Gloo's ring.

Links serialize strictly and hosts are some way apart (`herring.lab.strict`): what fills a path is
its bandwidth times its round trip, so that no size of credit fits all of them.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from herring.bench.peers import missing
from herring.lab.cluster import LateLinksError
from herring.study.bench import Network, Point, measure
from herring.study.experiments import Chart, Scale, Table

__all__ = ["long_paths"]

#: One-way delay in seconds, and the probability that a packet is lost.
SETTINGS = ((50e-6, 0), (200e-6, 0), (500e-6, 0), (500e-6, 1e-4), (500e-6, 1e-3), (5e-3, 0))
_SIZES = ("8KiB", "16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB")
_RUNS = 3  # of self-controlled credit: its outcome is its own, in every run
_ATTEMPTS = 3  # something else may have had the processors
_WARMUP = 5


@dataclasses.dataclass(frozen=True)
class _Case:
    """A kind of point: the column it fills, its runs, and how it is measured."""

    column: str
    runs: int
    library: str = "herring"
    credit: str = "0"


def long_paths(scale: Scale, size: int) -> Table:
    """Times all-reduces of `size` bytes over each delay and loss; seconds, medians.

    A cell is empty (None) where this machine could not keep the links to their model in three
    attempts: such figures are void.
    """
    workers = 2 if scale.quick else 4
    settings = ((500e-6, 1e-3),) if scale.quick else SETTINGS
    sizes = ("64KiB",) if scale.quick else _SIZES
    warmup = 1 if scale.quick else _WARMUP
    reason = missing("gloo")
    cases = [_Case("self_controlled", 1 if scale.quick else _RUNS)]
    cases += [_Case(f"fixed_{credit}", 1, credit=credit) for credit in sizes]
    cases += [] if reason else [_Case("gloo", 1, "gloo")]
    total, done = len(settings) * sum(case.runs for case in cases), 0
    rows, void = [], []
    for delay, loss in settings:
        network = dataclasses.replace(scale.network, delay=delay, loss=loss, strict=True)
        times: dict[str, list[float]] = {}
        for case in cases:
            servers = workers if case.library == "herring" else 0
            credit = {"HERRING_CREDIT": case.credit} if case.library == "herring" else {}
            point = Point(workers, servers, size, case.library, settings=credit)
            for _run in range(case.runs):
                what = f"{_delay(delay)}, {100 * loss:g} % lost, {case.column.replace('_', ' ')}"
                scale.report(done, total, what)
                done += 1
                try:
                    seconds = _measure(network, point, scale.iterations, warmup)
                except LateLinksError as error:
                    void.append(f"void: {what}: {error.report.text()}")
                else:
                    times.setdefault(case.column, []).append(seconds)
        rows.append(_row(delay, loss, size / network.bandwidth, cases, times))
    title = (
        f"{workers} workers, {size / 1e6:.4g} MB, strict links of "
        f"{scale.network.rate_bits / 1e6:g} Mbit/s, queue {scale.network.queue_seconds * 1e3:g} ms"
    )
    notes = [
        f"seconds, medians of {scale.iterations} rounds after {warmup}; model: the limit M/B",
        "Herring has as many dedicated servers as there are workers; Gloo's ring is over the "
        "workers alone",
        "fixed: HERRING_CREDIT; self controlled: the median of its runs, and the worst of them",
        *([f"skipped: gloo: {reason}"] if reason else []),
        *void,
    ]
    columns = ["self_controlled", "fastest_fixed", *([] if reason else ["gloo"]), "model_limit"]
    return Table("long-paths", title, rows, Chart("one_way_ms", columns, by="loss_percent"), notes)


def _measure(network: Network, point: Point, iterations: int, warmup: int) -> float:
    for attempt in range(_ATTEMPTS):
        try:
            return float(measure(network, point, iterations, warmup)["p50_seconds"])
        except LateLinksError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _row(
    delay: float, loss: float, limit: float, cases: list[_Case], times: dict[str, list[float]]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "one_way_ms": 1e3 * delay,
        "loss_percent": 100 * loss,
        "model_limit": limit,
    }
    for case in cases:
        found = times.get(case.column)
        row[case.column] = statistics.median(found) if found else None
        if case.credit == "0" and case.library == "herring":
            row["worst_run"] = max(found) if found else None
    fixed = [row[case.column] for case in cases if row[case.column] and case.credit != "0"]
    row["fastest_fixed"] = min(fixed, default=None)
    return row


def _delay(seconds: float) -> str:
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"
