"""The metrics of a job: their specification, and a status in Prometheus' text format.

`METRICS` is the only place that says which metrics there are. The job's own ``/metrics``, ``herring
status --metrics``, OpenTelemetry, the dashboard and docs/how-to/metrics.md all follow it. Labels
have the names of NCCL Inspector's exporter where they mean the same: ``slurm_job_id``, ``rank``,
``comm_name``, ``nranks``, ``n_nodes``, ``collective``, ``message_size``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["METRICS", "SCOPES", "Metric", "family", "prometheus", "samples"]

# For each scope, the list of the status that has its items (a job is one item), and the labels of
# each item with the field that each label is read from.
SCOPES: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "job": ("", ()),
    "rank": ("ranks", (("rank", "rank"), ("node", "node"), ("host", "host"))),
    "server": (
        "servers",
        (("server", "server"), ("kind", "kind"), ("node", "node"), ("host", "host")),
    ),
    "group": ("groups", (("group", "group"), ("comm_name", "name"), ("nranks", "size"))),
    "operation": (
        "operations",
        (("collective", "collective"), ("message_size", "message_size")),
    ),
}
_MOST_GROUPS = 256  # Series of more groups would be too many.
# The labels that every sample has.
_JOB_LABELS = (("job", "job"), ("slurm_job_id", "slurm_job_id"))


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: The name in Prometheus. Times are in seconds, shares are ratios from 0 to 1.
        kind: ``gauge`` or ``counter``.
        help: What it means.
        scope: A name in `SCOPES`: what there is one sample for.
        field: Where the value is: the field of the item. A list counts, true is 1. An empty text
            means that the value is 1.
        labels: More labels, with the field that each is read from.
        by: A label that tells several fields of the item apart, if `fields` has them.
        fields: For each value of that label, the field with the value.
    """

    name: str
    kind: str
    help: str
    scope: str
    field: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    by: str = ""
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """All labels in their order."""
        own = tuple(name for name, _ in (*_JOB_LABELS, *SCOPES[self.scope][1], *self.labels))
        return (*own, self.by) if self.by else own

    @property
    def sources(self) -> tuple[str, ...]:
        """The fields of the status that values come from, for the documentation."""
        of, _ = SCOPES[self.scope]
        before = f"{of}[]." if of else ""
        named = [field for _, field in self.fields] or [self.field]
        if named == [""]:
            named = [field for _, field in self.labels]
        return tuple(before + field for field in named)


def _job(name: str, text: str, field: str = "", kind: str = "gauge", **more: Any) -> Metric:
    return Metric(f"herring_{name}", kind, text, "job", field, **more)


def _of(scope: str, name: str, text: str, field: str = "", **more: Any) -> Metric:
    kind = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"herring_{scope}_{name}", kind, text, scope, field, **more)


METRICS: Sequence[Metric] = (
    _job(
        "job_info",
        "Always 1; the labels describe the job.",
        labels=(("version", "herring"), ("nranks", "size"), ("n_nodes", "nodes"), ("id", "id")),
    ),
    _job("job_ranks", "Ranks of the job.", "size"),
    _job("job_nodes", "Nodes of the job.", "nodes"),
    _job("job_epoch", "Generation of the job's membership.", "epoch"),
    _job("job_uptime_seconds", "Time since the job began.", "uptime"),
    _job("job_findings", "Findings that the status reports now.", "findings"),
    _job("steps_total", "Steps that have ended on all ranks.", "steps.count", "counter"),
    _job("steps_per_second", "Steps per second, lately.", "steps.per_second"),
    _job(
        "step_seconds",
        "Time of a step, lately: shortest, median and longest.",
        by="stat",
        fields=tuple((stat, f"steps.seconds.{stat}") for stat in ("min", "median", "max")),
    ),
    _job(
        "step_part_seconds",
        "Time of a step that each part takes, median over ranks. Parts overlap.",
        by="part",
        fields=tuple(
            (part, f"steps.{part}")
            for part in ("compute", "node_stage", "push", "pull", "wait_for_ranks")
        ),
    ),
    _job(
        "step_exposed_seconds",
        "Time of a step in which programs waited for averages.",
        "steps.exposed",
    ),
    _job(
        "binds_ratio",
        "Share of a step that is due to what binds; the label says what that is.",
        "binds.share",
        labels=(("what", "binds.what"),),
    ),
    _of("rank", "state", "1 for the state in which the rank is.", labels=(("state", "state"),)),
    _of("rank", "state_seconds", "For how long the rank has been in its state.", "for"),
    _of("rank", "heard_seconds", "Time since the rank's last report.", "heard"),
    _of(
        "rank",
        "missing_seconds",
        "For how long others have waited for this rank, 0 if nobody does.",
        "missing",
    ),
    _of(
        "rank",
        "late_seconds",
        "How much later than the median rank it gave its data: median and longest.",
        by="stat",
        fields=(("median", "late.median"), ("max", "late.max")),
    ),
    _of("rank", "late_ratio", "Share of steps in which the rank was late.", "late.share"),
    _of("rank", "score_ratio", "Score of the rank, from 0 (last) to 1 (as fast as all).", "score"),
    _of("rank", "late_cause", "1 for the cause of its lateness.", labels=(("cause", "cause"),)),
    _of("rank", "chronic", "1 if the rank is late again and again.", "chronic"),
    _of("rank", "outlier", "1 if the rank stands out among all ranks.", "outlier"),
    _of("rank", "rounds_total", "Rounds of plans that have ended on the rank.", "rounds"),
    _of("rank", "calls_total", "Named operations that have ended on the rank.", "calls"),
    _of("rank", "in_flight", "Operations that have not ended on the rank.", "in_flight"),
    _of("rank", "compute_seconds", "Time of a step in which the rank computes.", "compute"),
    _of("rank", "wait_seconds", "Time of a step in which the rank's program waits.", "wait"),
    _of("rank", "sent_bytes_total", "Bytes that the rank has sent.", "bytes_sent"),
    _of("rank", "received_bytes_total", "Bytes that the rank has received.", "bytes_received"),
    _of("rank", "retransmits_total", "Segments that TCP has sent again.", "retransmits"),
    _of("rank", "rtt_seconds", "Round-trip time of the rank's flows.", "rtt"),
    _of("rank", "credit_bytes", "Bytes that a flow of the rank may have outstanding.", "credit"),
    _of(
        "rank",
        "kept_bytes",
        "Bytes that the rank keeps for others, who may lack them when a server dies.",
        "kept",
    ),
    _of("rank", "memory_bytes", "Resident memory of the rank's process.", "memory"),
    _of("rank", "major_faults_total", "Pages that were read from disk.", "major_faults"),
    _of("rank", "clock_offset_seconds", "Offset of its clock from that of rank 0.", "clock_offset"),
    _of("rank", "clock_error_seconds", "Bound on the error of that offset.", "clock_error"),
    _of("server", "state", "1 for the state in which the server is.", labels=(("state", "state"),)),
    _of("server", "heard_seconds", "Time since the server's last report.", "heard"),
    _of("server", "weight_ratio", "Share of all bytes that the server sums.", "weight"),
    _of("server", "outlier", "1 if the server stands out among all servers.", "outlier"),
    _of("server", "slow_cause", "1 for the cause of its slowness.", labels=(("cause", "cause"),)),
    _of("server", "sent_bytes_total", "Bytes that the server has sent.", "bytes_sent"),
    _of("server", "received_bytes_total", "Bytes that it has received.", "bytes_received"),
    _of("server", "in_flight", "Sums that have not ended on the server.", "in_flight"),
    _of("server", "retransmits_total", "Segments that TCP has sent again.", "retransmits"),
    _of("server", "rtt_seconds", "Round-trip time of the server's flows.", "rtt"),
    _of("server", "memory_bytes", "Resident memory of the server's process.", "memory"),
    _of("group", "ranks", "Ranks of a group.", "size"),
    _of("group", "rounds_total", "Rounds of plans that have begun in the group.", "rounds"),
    _of("group", "calls_total", "Named operations that have begun in the group.", "calls"),
    _of(
        "group",
        "in_flight",
        "Operations that have not ended, of the rank with most.",
        "in_flight",
    ),
    _of(
        "group",
        "standstill_seconds",
        "For how long something has been in flight and nothing has ended.",
        "for",
    ),
    _of(
        "group",
        "absent_ranks",
        "Ranks with nothing in flight in the group, while others wait for long.",
        "absent",
    ),
    _of("operation", "ended_total", "Operations that have ended, on all ranks.", "ended"),
    _of("operation", "bytes_total", "Data of these operations, on all ranks.", "bytes"),
    _of(
        "operation",
        "seconds_total",
        "Time of these operations, from giving the data to the result, on all ranks.",
        "seconds",
    ),
)


def family(name: str) -> Metric | None:
    """Returns the metric of this name, or None."""
    return next((metric for metric in METRICS if metric.name == name), None)


def prometheus(status: Mapping[str, Any]) -> str:
    """Returns a status in Prometheus' text format, version 0.0.4.

    Args:
      status: What `schema.parse` returns.
    """
    lines = []
    for metric in METRICS:
        found = [
            f"{metric.name}{{{_shown(labels)}}} {_number(value)}\n"
            for labels, value in samples(metric, status)
        ]
        if found:
            lines.append(f"# HELP {metric.name} {metric.help}\n")
            lines.append(f"# TYPE {metric.name} {metric.kind}\n")
            lines += found
    return "".join(lines)


def samples(
    metric: Metric, status: Mapping[str, Any]
) -> Iterator[tuple[dict[str, str], int | float]]:
    """Yields the samples of a metric, each with its labels.

    A value that the status does not have makes no sample, and a label that it does not have is left
    out.
    """
    of_item = SCOPES[metric.scope][1]
    for item in _items(metric.scope, status):
        common = [*_labels(status, _JOB_LABELS), *_labels(item, of_item)]
        more = [*_labels(item, metric.labels)]
        if len(more) < len(metric.labels):
            continue
        for value, field in metric.fields or (("", metric.field),):
            number = _value(item, field) if field else 1
            if number is not None:
                yield dict([*common, *more, *([(metric.by, value)] if value else [])]), number


def _items(scope: str, status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields what the samples of a scope describe, with the fields that are derived."""
    if scope == "job":
        yield status
    elif scope == "group":
        yield from status["groups"][:_MOST_GROUPS]
    elif scope == "rank":
        missing: dict[int, float] = {}
        for each in status["missing"]:
            for rank in each["ranks"]:
                missing[rank] = max(missing.get(rank, 0), each["for"] or 0)
        for item in status["ranks"]:
            yield {**item, "missing": missing.get(item["rank"], 0)}
    else:
        yield from status[SCOPES[scope][0]]


def _labels(
    item: Mapping[str, Any], labels: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    for label, field in labels:
        value = _found(item, field)
        if value is not None and value != "":
            yield label, str(value)


def _found(item: Any, field: str) -> Any:
    for name in field.split("."):
        item = item.get(name) if isinstance(item, Mapping) else None
    return item


def _value(item: Mapping[str, Any], field: str) -> int | float | None:
    value = _found(item, field)
    if isinstance(value, list):
        return len(value)
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, bool) else value


def _shown(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
