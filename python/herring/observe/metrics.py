"""The metrics of a job: the core's table of them, and a status in Prometheus' text format.

src/observe/metrics_table.h says which metrics there are; `METRICS` is that table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import herring._core as _core

_MOST_GROUPS = 256  # Series of more groups would be too many.


@dataclass(frozen=True)
class Metric:
    """A metric."""

    name: str  # The name in Prometheus. Times are in seconds, shares are ratios from 0 to 1.
    kind: str  # ``gauge`` or ``counter``
    help: str  # what it means
    scope: str  # a name in `SCOPES`: what there is one sample for
    # Where the value is: the field of the item. A list counts, true is 1. An empty text means that
    # the value is 1.
    field: str = ""
    labels: tuple[tuple[str, str], ...] = ()  # more labels, with the field that each is read from
    by: str = ""  # a label that tells several fields of the item apart, if `fields` has them
    # For each value of that label, the field with the value.
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


def _words(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the labels or values in a word list of the table, each with its field."""
    pairs = [word.rpartition("=")[::2] for word in text.split()]
    return tuple((label or field.rpartition(".")[2], field) for label, field in pairs)


def _metric(name: str, scope: str, text: str, fields: str, by: str, labels: str) -> Metric:
    several = _words(fields) if by else ()
    kind = "counter" if name.endswith("_total") else "gauge"
    field = "" if several else fields
    return Metric(f"herring_{name}", kind, text, scope, field, _words(labels), by, several)


_scopes, _job_labels, _metrics = _core.metric_rows()
# For each scope, the list of the status that has its items (a job is one item), and the labels of
# each item with the field that each label is read from.
SCOPES: Mapping[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    name: (items, _words(labels)) for name, items, labels in _scopes
}
# The labels that every sample has.
_JOB_LABELS = _words(_job_labels)
METRICS: Sequence[Metric] = tuple(_metric(*row) for row in _metrics)


def family(name: str) -> Metric | None:
    """Returns the metric of this name, or None."""
    return next((metric for metric in METRICS if metric.name == name), None)


def prometheus(status: Mapping[str, Any]) -> str:
    """Returns a status in Prometheus' text format, version 0.0.4."""
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
