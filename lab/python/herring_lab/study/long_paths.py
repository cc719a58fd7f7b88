"""Compares self-controlled credit with fixed credit and Gloo's ring on long and lossy paths.

Links are strict, and hosts are some distance apart (`herring_lab.emulate.strict`). Bandwidth times
round trip fills a path, so no fixed credit suits all paths.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from herring_lab.competitors import missing
from herring_lab.report import Chart, Table
from herring_lab.study.cases import Case, Times, counted, measure_cases, show_delay
from herring_lab.study.experiments import Scale

#: Pairs of one-way delay in seconds and probability that a packet is lost.
SETTINGS = ((50e-6, 0), (200e-6, 0), (500e-6, 0), (500e-6, 1e-4), (500e-6, 1e-3), (5e-3, 0))
_SIZES = ("8KiB", "16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB")
_WARMUP = 5
_OWN = "self_controlled"


def long_paths(scale: Scale, size: int) -> Table:
    """Times all-reduces of `size` bytes over each delay and loss.

    Cells are medians in seconds. A cell is None if this machine could not keep the links to their
    model in three attempts, because such figures are void.
    """
    workers = 2 if scale.quick else 4
    settings = ((500e-6, 1e-3),) if scale.quick else SETTINGS
    sizes = ("64KiB",) if scale.quick else _SIZES
    warmup = 1 if scale.quick else _WARMUP
    reason = missing("gloo")
    # Self-controlled credit differs from run to run, so only this case has several runs.
    cases = [Case(_OWN, scale.runs)]
    cases += [Case(f"fixed_{size}", settings={"HERRING_CREDIT": size}) for size in sizes]
    cases += [] if reason else [Case("gloo", library="gloo")]
    begin = counted(scale.report, len(settings) * sum(case.runs for case in cases))
    rows, void = [], []
    for delay, loss in settings:
        network = dataclasses.replace(scale.network, delay=delay, loss=loss, strict=True)
        count, where = scale.iterations, f"{show_delay(delay)}, {100 * loss:g} % lost"
        times = measure_cases(network, cases, workers, size, count, warmup, begin, where)
        rows.append(_row(delay, loss, size / network.bandwidth, cases, times))
        void += times.void
    title = (
        f"{workers} workers, {size / 1e6:.4g} MB, strict links of "
        f"{scale.network.rate_bits / 1e6:g} Mbit/s, queue {scale.network.queue_seconds * 1e3:g} ms"
    )
    notes = [
        f"seconds, medians of {scale.iterations} rounds after {warmup}; model: the limit M/B",
        "Herring has as many dedicated servers as there are workers; Gloo's ring runs over the "
        "workers alone",
        "fixed: HERRING_CREDIT; self controlled: the median of its runs, and the worst of them",
        *([f"skipped: gloo: {reason}"] if reason else []),
        *void,
    ]
    chart = Chart(
        "one_way_ms",
        [_OWN, "fastest_fixed", *([] if reason else ["gloo"]), "model_limit"],
        "delay between hosts, one way (ms)",
        "time of an all-reduce (s)",
        by="loss_percent",
        x_scale="log",
        names={
            _OWN: "Herring, self-controlled",
            "fastest_fixed": "Herring, fastest fixed credit",
            "gloo": "Gloo's ring",
            "model_limit": "limit M/B",
            **{str(100 * loss): f"{100 * loss:g} % lost" for _, loss in settings},
        },
    )
    return Table("long-paths", title, rows, chart, notes)


def _row(delay: float, loss: float, limit: float, cases: list[Case], times: Times) -> dict:
    row: dict[str, Any] = {
        "one_way_ms": 1e3 * delay,
        "loss_percent": 100 * loss,
        "model_limit": limit,
    }
    for case in cases:
        row[case.column] = times.median(case.column)
        if case.column == _OWN:
            row["worst_run"] = times.worst(case.column)
    fixed = [row[case.column] for case in cases if row[case.column] and case.settings]
    row["fastest_fixed"] = min(fixed, default=None)
    return row
