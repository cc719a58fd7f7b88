"""The dashboard for Grafana: panels over the metrics of `herring.observe.metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from herring.observe.metrics import METRICS

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_JOB = 'job="$job"'
_NODE = 'job="$job",node=~"$node"'
_COLUMNS = 24
_HEIGHT = 8
_SCHEMA = 39  # of Grafana 11; newer versions convert it
_RATE = "[$__rate_interval]"
# Units of Grafana.
_SECONDS, _SHARE, _BYTES, _BYTES_PER_SECOND, _EACH = "s", "percentunit", "decbytes", "Bps", "short"

# A panel: its title, its kind, its width in columns, its unit, what it shows, and its queries with
# the texts of their legends.
_Panel = tuple[str, str, int, str, str, Sequence[tuple[str, str]]]


def _names() -> Mapping[str, str]:
    """Returns the metrics by their names without ``herring_``; a typo below is then an error."""
    return {metric.name.removeprefix("herring_"): metric.name for metric in METRICS}


def _rows() -> Sequence[tuple[str, Sequence[_Panel]]]:
    """Returns the rows of the dashboard, each with a title and panels."""
    m = _names()
    rank, server = "rank {{rank}} ({{host}})", "server {{server}} ({{host}})"
    operation, group = "{{collective}} {{message_size}}", "{{comm_name}} (group {{group}})"
    return (
        (
            "Steps",
            (
                (
                    "Steps per second",
                    "stat",
                    4,
                    _EACH,
                    "Steps that the job does per second, lately.",
                    ((f"{m['steps_per_second']}{{{_JOB}}}", ""),),
                ),
                (
                    "What limits the speed",
                    "bargauge",
                    8,
                    _SHARE,
                    "The share of a step that is due to what limits its speed.",
                    ((f"{m['binds_ratio']}{{{_JOB}}}", "{{what}}"),),
                ),
                (
                    "Findings",
                    "stat",
                    4,
                    _EACH,
                    "What `herring status` reports now; 0 is good.",
                    ((f"{m['job_findings']}{{{_JOB}}}", ""),),
                ),
                (
                    "Ranks by state",
                    "bargauge",
                    8,
                    _EACH,
                    "How many ranks are in each state.",
                    ((f"count by (state) ({m['rank_state']}{{{_NODE}}})", "{{state}}"),),
                ),
                (
                    "Step time",
                    "timeseries",
                    12,
                    _SECONDS,
                    "Shortest, median and longest step.",
                    ((f"{m['step_seconds']}{{{_JOB}}}", "{{stat}}"),),
                ),
                (
                    "Parts of a step",
                    "stacked",
                    12,
                    _SECONDS,
                    "Median over ranks. Parts overlap, so that their sum exceeds the step time.",
                    ((f"{m['step_part_seconds']}{{{_JOB}}}", "{{part}}"),),
                ),
                (
                    "What limits the speed, over time",
                    "stacked",
                    12,
                    _SHARE,
                    "The share of a step that is due to what limits its speed.",
                    ((f"{m['binds_ratio']}{{{_JOB}}}", "{{what}}"),),
                ),
                (
                    "Waiting for averages",
                    "timeseries",
                    12,
                    _SECONDS,
                    "Time of a step in which programs waited (exposed).",
                    ((f"{m['step_exposed_seconds']}{{{_JOB}}}", "waiting"),),
                ),
            ),
        ),
        (
            "Who is late",
            (
                (
                    "Lateness, top 5",
                    "timeseries",
                    12,
                    _SECONDS,
                    "The five ranks whose data comes latest, compared with the median rank.",
                    ((f'topk(5, {m["rank_late_seconds"]}{{{_NODE},stat="median"}})', rank),),
                ),
                (
                    "Lateness of every rank",
                    "heat",
                    12,
                    _SECONDS,
                    "One line per rank; a lasting colour is a chronically late rank.",
                    ((f'{m["rank_late_seconds"]}{{{_NODE},stat="median"}}', rank),),
                ),
                (
                    "Score, lowest 10",
                    "timeseries",
                    12,
                    _SHARE,
                    "1 is as fast as all others.",
                    ((f"bottomk(10, {m['rank_score_ratio']}{{{_NODE}}})", rank),),
                ),
                (
                    "Waited for",
                    "timeseries",
                    12,
                    _SECONDS,
                    "For how long others have waited for a rank without which nothing goes on.",
                    ((f"{m['rank_missing_seconds']}{{{_NODE}}} > 0", rank),),
                ),
            ),
        ),
        (
            "Network",
            (
                (
                    "Bytes per second of ranks",
                    "timeseries",
                    12,
                    _BYTES_PER_SECOND,
                    "Sent, and received as negative values.",
                    (
                        (f"rate({m['rank_sent_bytes_total']}{{{_NODE}}}{_RATE})", f"{rank} sent"),
                        (
                            f"-rate({m['rank_received_bytes_total']}{{{_NODE}}}{_RATE})",
                            f"{rank} received",
                        ),
                    ),
                ),
                (
                    "Bytes per second of servers",
                    "timeseries",
                    12,
                    _BYTES_PER_SECOND,
                    "Sent, and received as negative values.",
                    (
                        (
                            f"rate({m['server_sent_bytes_total']}{{{_JOB}}}{_RATE})",
                            f"{server} sent",
                        ),
                        (
                            f"-rate({m['server_received_bytes_total']}{{{_JOB}}}{_RATE})",
                            f"{server} received",
                        ),
                    ),
                ),
                (
                    "Retransmits per second",
                    "timeseries",
                    12,
                    _EACH,
                    "Segments that TCP sends again. Many mean a lossy or overloaded link.",
                    (
                        (f"rate({m['rank_retransmits_total']}{{{_NODE}}}{_RATE})", rank),
                        (f"rate({m['server_retransmits_total']}{{{_JOB}}}{_RATE})", server),
                    ),
                ),
                (
                    "Credit of a flow",
                    "timeseries",
                    12,
                    _BYTES,
                    "Bytes that a flow may have outstanding; few mean a short or a bad link.",
                    ((f"{m['rank_credit_bytes']}{{{_NODE}}}", rank),),
                ),
            ),
        ),
        (
            "Operations",
            (
                (
                    "Bytes per second while they run, by collective and size",
                    "timeseries",
                    12,
                    _BYTES_PER_SECOND,
                    "Data of a rank, divided by the time from giving it to the result. Waiting "
                    "for other ranks counts.",
                    (
                        (
                            f"sum by (collective, message_size) "
                            f"(rate({m['operation_bytes_total']}{{{_JOB}}}{_RATE})) / "
                            f"sum by (collective, message_size) "
                            f"(rate({m['operation_seconds_total']}{{{_JOB}}}{_RATE}))",
                            operation,
                        ),
                    ),
                ),
                (
                    "Operations per second, by collective and size",
                    "timeseries",
                    12,
                    _EACH,
                    "Operations that end on all ranks together.",
                    ((f"rate({m['operation_ended_total']}{{{_JOB}}}{_RATE})", operation),),
                ),
                (
                    "Groups that stand still, top 5",
                    "timeseries",
                    12,
                    _SECONDS,
                    "For how long something has been in flight in a group and nothing has ended.",
                    ((f"topk(5, {m['group_standstill_seconds']}{{{_JOB}}})", group),),
                ),
                (
                    "In flight in groups, top 5",
                    "timeseries",
                    12,
                    _EACH,
                    "Operations of a group that have not ended, on the rank with most.",
                    ((f"topk(5, {m['group_in_flight']}{{{_JOB}}})", group),),
                ),
            ),
        ),
        (
            "Processes",
            (
                (
                    "Memory",
                    "timeseries",
                    12,
                    _BYTES,
                    "Resident memory.",
                    (
                        (f"{m['rank_memory_bytes']}{{{_NODE}}}", rank),
                        (f"{m['server_memory_bytes']}{{{_JOB}}}", server),
                    ),
                ),
                (
                    "In flight",
                    "timeseries",
                    12,
                    _EACH,
                    "Operations of ranks and sums of servers that have not ended.",
                    (
                        (f"{m['rank_in_flight']}{{{_NODE}}}", rank),
                        (f"{m['server_in_flight']}{{{_JOB}}}", server),
                    ),
                ),
            ),
        ),
    )


def dashboard() -> dict[str, Any]:
    """Returns the JSON model of the dashboard, which Grafana imports."""
    return {
        "title": "Herring",
        "uid": "herring",
        "description": "Jobs that average gradients with Herring: steps, late ranks, network.",
        "tags": ["herring"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,  # a shared crosshair
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    m = _names()
    of_node = f"label_values({m['rank_state']}{{{_JOB}}}, node)"
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
        },
        _variable("job", "Job", f"label_values({m['job_info']}, job)", all_of_them=False),
        _variable("node", "Node", of_node, all_of_them=True),
    ]


def _variable(name: str, label: str, query: str, all_of_them: bool) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,  # when the time range changes
        "sort": 3,  # by number
        "multi": all_of_them,
        "includeAll": all_of_them,
        "current": {"text": ["All"], "value": ["$__all"]} if all_of_them else {},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in _rows():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": top},
            "panels": [],
        }
        top, left = top + 1, 0
        for panel in panels:
            number += 1
            width = panel[2]
            if left + width > _COLUMNS:
                top, left = top + _HEIGHT, 0
            yield _panel(number, {"h": _HEIGHT, "w": width, "x": left, "y": top}, panel)
            left += width
        top += _HEIGHT


def _panel(number: int, place: Mapping[str, int], panel: _Panel) -> dict[str, Any]:
    title, kind, _, unit, text, queries = panel
    custom: dict[str, Any] = {}
    options: dict[str, Any] = {}
    if kind in ("timeseries", "stacked"):
        custom = {"drawStyle": "line", "fillOpacity": 10, "showPoints": "never"}
        if kind == "stacked":
            custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    elif kind == "heat":
        custom = {"fillOpacity": 80, "lineWidth": 0}
        options = {"showValue": "never", "mergeValues": False, "rowHeight": 0.9}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "values": False}}
        if kind == "bargauge":
            options |= {"orientation": "horizontal", "displayMode": "gradient"}
    color = {"mode": "continuous-GrYlRd"} if kind == "heat" else {"mode": "palette-classic"}
    instant = kind in ("stat", "bargauge")
    return {
        "id": number,
        "type": {"stacked": "timeseries", "heat": "state-timeline"}.get(kind, kind),
        "title": title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {
            "defaults": {"unit": unit, "color": color, "custom": custom},
            "overrides": [],
        },
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                "range": not instant,
                "instant": instant,
                "editorMode": "code",
            }
            for index, (query, legend) in enumerate(queries)
        ],
    }
