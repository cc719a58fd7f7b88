"""Metrics of a job: Prometheus' text, the dashboard for Grafana, and OpenTelemetry."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import statuses
import warm
from herring import _core
from herring.base.parts import data_file
from herring.command import cli
from herring.errors import ConfigurationError
from herring.observe import client, otel
from herring.observe.metrics import METRICS, SCOPES, family, prometheus, samples
from herring.observe.schema import parse
from status_server import StatusServer, short_folder

DASHBOARD = data_file("observe/dashboard.json")
ROOT = Path(__file__).resolve().parents[2]
openmetrics = pytest.importorskip("prometheus_client.parser")


def text_of(status: dict[str, Any]) -> str:
    return prometheus(parse(json.dumps(status), "the test"))


def families(text: str) -> dict[str, Any]:
    """Parses Prometheus' text; counters keep the name that their samples have."""
    found = {}
    for each in openmetrics.text_string_to_metric_families(text):
        assert each.samples, each.name
        found[each.name + "_total" * (each.type == "counter")] = each
    return found


def values(text: str, name: str, **labels: str) -> list[float]:
    return [
        sample.value
        for sample in families(text)[name].samples
        if labels.items() <= sample.labels.items()
    ]


@pytest.mark.parametrize("name", ["healthy", "late", "stalled"])
def test_metrics_have_what_the_specification_says(name: str) -> None:
    text = text_of(getattr(statuses, name)())
    found = families(text)
    assert found.keys() <= {metric.name for metric in METRICS}
    for metric in METRICS:
        if metric.name not in found:
            continue
        assert found[metric.name].type == metric.kind
        assert found[metric.name].documentation == metric.help
        for sample in found[metric.name].samples:
            assert sample.name == metric.name
            assert sample.labels.keys() <= set(metric.label_names)
            assert sample.labels["job"] == "resnet" and sample.labels["slurm_job_id"] == "4711"
        series = [tuple(sorted(sample.labels.items())) for sample in found[metric.name].samples]
        assert len(series) == len(set(series)), f"{metric.name} has a series twice"


def test_every_metric_is_there_if_its_values_are() -> None:
    status = statuses.late()
    status["missing"] = statuses.stalled()["missing"]
    assert families(text_of(status)).keys() == {metric.name for metric in METRICS}


def test_values_come_from_the_fields() -> None:
    text = text_of(statuses.late())
    assert values(text, "herring_steps_total") == [7200]
    assert values(text, "herring_step_seconds", stat="median") == [0.1331]
    assert values(text, "herring_step_part_seconds", part="wait_for_ranks") == [0.0312]
    assert values(text, "herring_binds_ratio", what="rank") == [0.23]
    late = {"rank": "5", "node": "2", "host": "node03"}
    assert values(text, "herring_rank_late_seconds", stat="median", **late) == [0.0312]
    assert values(text, "herring_rank_late_cause", cause="input", **late) == [1]
    assert values(text, "herring_rank_chronic") == [0, 0, 0, 0, 0, 1, 0, 0]
    assert values(text, "herring_rank_state", state="computing") == [1] * 8
    assert values(text, "herring_rank_missing_seconds") == [0] * 8
    assert values(text, "herring_server_retransmits_total", server="1") == [48211]
    assert values(text, "herring_group_ranks", comm_name="tp", nranks="2", group="1") == [2]
    assert values(text, "herring_group_absent_ranks") == [0, 0]
    small = {"collective": "allreduce", "message_size": "0-4KB"}
    assert values(text, "herring_operation_bytes_total", **small) == [14400 * 8]
    assert values(text, "herring_operation_ended_total", **small) == [14400]
    assert values(text, "herring_job_findings") == [1]
    assert values(text, "herring_job_info", nranks="8", n_nodes="4", version="0.3.0") == [1]
    assert values(text_of(statuses.stalled()), "herring_rank_missing_seconds", rank="6") == [42.3]


def test_large_counters_are_exact_and_texts_are_escaped() -> None:
    status = statuses.healthy()
    status["ranks"][0] |= {"bytes_sent": 2**53 - 1, "host": 'a\\b"c'}
    text = text_of(status)
    assert f"{2**53 - 1}\n" in text
    assert values(text, "herring_rank_sent_bytes_total", host='a\\b"c') == [2**53 - 1]


def test_series_of_groups_are_bounded() -> None:
    status = statuses.healthy()
    status["groups"] = [statuses.group_of(number, "pair", (0, 1)) for number in range(3000)]
    found = families(text_of(status))["herring_group_in_flight"].samples
    assert [sample.labels["group"] for sample in found] == [str(number) for number in range(256)]


def test_absent_values_make_no_samples() -> None:
    status = statuses.healthy()
    del status["slurm_job_id"], status["servers"]
    status["ranks"] = [{"rank": 0, "late": None, "rtt": float("nan")}]
    found = families(text_of(status))
    assert not any(name.startswith("herring_server") for name in found)
    assert found["herring_rank_missing_seconds"].samples[0].labels == {"job": "resnet", "rank": "0"}
    assert "herring_rank_rtt_seconds" not in found and "herring_rank_late_seconds" not in found


def test_names_follow_the_rules_of_prometheus() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    for metric in METRICS:
        assert re.fullmatch(r"herring_[a-z]+(_[a-z]+)*", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".") and "\n" not in metric.help
        assert metric.scope in SCOPES and bool(metric.by) == bool(metric.fields)
        assert family(metric.name) is metric
    assert family("herring_nothing") is None


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_objections() -> None:
    for status in (statuses.healthy(), statuses.late(), statuses.stalled()):
        done = warm.run(
            ["promtool", "check", "metrics"], input=text_of(status), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_command_prints_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.late()) as server:
        assert cli.main(["status", server.where, "--metrics"]) == 0
        printed = capsys.readouterr().out
        with urllib.request.urlopen(f"http://{server.where}/metrics", timeout=600) as answer:
            assert answer.read().decode() == printed
    assert families(printed)


@pytest.mark.skipif(
    "HERRING_STATUS" not in {row["env"] for row in _core.setting_rows()},
    reason="this core serves no status",
)
def test_a_job_serves_these_metrics() -> None:
    script = "import herring, time; herring.init(); herring.barrier(); time.sleep(600)"
    with short_folder() as runtime:
        job = warm.Popen(
            [
                *(sys.executable, "-m", "herring.command.cli", "run", "-n", "2", "--nodes", "2"),
                *("--", sys.executable, "-c", script),
            ],
            env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), "SLURM_JOB_ID": "4711"},
        )
        try:
            end = time.monotonic() + 60
            status: dict[str, Any] = {"ranks": []}
            while len(status["ranks"]) < 2 or status["ranks"][1]["heard"] is None:
                assert job.poll() is None and time.monotonic() < end
                time.sleep(0.05)
                for path in (runtime / "herring").glob("*.sock"):
                    place = client.Endpoint(str(path), path)
                    status = parse(client.ask(place, "json", 10), str(path))
            served = families(client.ask(place, "metrics", 10))
        finally:
            job.terminate()
            job.wait(600)
    ours = families(prometheus(status))
    # What a rank has not measured yet may come between the two requests.
    assert served.keys() >= ours.keys()
    for name, found in served.items():
        metric = family(name)
        assert metric is not None, f"METRICS lacks {name}"
        assert (found.type, found.documentation) == (metric.kind, metric.help)
        for sample in found.samples:
            assert sample.labels.keys() <= set(metric.label_names), name
    for name, found in ours.items():
        labels = Counter(frozenset(sample.labels) for sample in found.samples)
        assert labels <= Counter(frozenset(sample.labels) for sample in served[name].samples), name


def queries(panels: list[dict[str, Any]]) -> Iterator[str]:
    for panel in panels:
        for target in panel.get("targets", []):
            yield target["expr"]


def selectors(node: Any) -> Iterator[Any]:
    """Yields the selectors of series in a parsed query."""
    if type(node).__name__ == "VectorSelector":
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "selector"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def test_queries_of_the_dashboard_use_metrics_and_labels_that_exist() -> None:
    promql = pytest.importorskip("promql_parser")
    model = DASHBOARD
    asked = set()
    for query in queries(model["panels"]):
        found = [*selectors(promql.parse(query.replace("$__rate_interval", "1m")))]
        assert found, query
        counters = 0
        for selector in found:
            metric = family(selector.name)
            assert metric is not None, query
            assert {each.name for each in selector.matchers.matchers} <= set(metric.label_names)
            asked.add(metric.name)
            counters += metric.kind == "counter"
        assert query.count("rate(") == counters, query
    for part in ("step_part", "binds", "rank_late", "rank_score", "sent_bytes", "retransmits"):
        assert any(part in name for name in asked), part
    assert {"herring_rank_credit_bytes", "herring_rank_memory_bytes"} <= asked
    assert {"herring_rank_in_flight", "herring_server_sent_bytes_total"} <= asked
    assert {"herring_operation_bytes_total", "herring_operation_seconds_total"} <= asked


def test_legends_of_the_dashboard_use_labels_that_exist() -> None:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            name = re.search(r"herring_\w+", target["expr"])
            assert name is not None
            metric = family(name[0])
            assert metric is not None and named <= set(metric.label_names), target


def test_the_dashboard_is_well_formed() -> None:
    model = DASHBOARD
    panels = model["panels"]
    identifiers = [panel["id"] for panel in panels]
    assert len(identifiers) == len(set(identifiers))
    cells = Counter[tuple[int, int]]()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            cells.update((x, y) for y in range(place["y"], place["y"] + place["h"]))
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}" and panel["description"]
            references = [target["refId"] for target in panel["targets"]]
            assert references == sorted(set(references))
    assert max(cells.values()) == 1, "panels overlap"
    variables = {each["name"]: each for each in model["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "node"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(model))) - {"__all", "__rate_interval"}
    assert used == set(variables)
    for name in ("job", "node"):
        asked = re.search(
            rf"label_values\((herring_\w+).*, {name}\)", variables[name]["definition"]
        )
        assert asked is not None
        metric = family(asked[1])
        assert metric is not None and name in metric.label_names


def test_grafana_s_types_take_the_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--dashboard"]) == 0
    model = json.loads(capsys.readouterr().out)
    types = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    found = types.Dashboard.from_json(model)
    assert len(found.panels) == len(model["panels"])
    kept = json.loads(json.dumps(found, default=lambda each: each.to_json()))
    assert [*queries(kept["panels"])] == [*queries(model["panels"])]


def test_opentelemetry_reads_a_job(monkeypatch: Any) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    now = 1000.0
    monkeypatch.setattr(otel, "time", SimpleNamespace(monotonic=lambda: now))
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with StatusServer(statuses.late()) as server:
        otel.instrument(server.where, meter_provider=provider)
        exported = reader.get_metrics_data()
        assert server.asked == ["json"], "one export needs one status"
    (scope,) = exported.resource_metrics[0].scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    status = parse(json.dumps(statuses.late()), "the test")
    for metric in METRICS:
        name, unit = otel.instrument_name(metric)
        points = {
            (frozenset(point.attributes.items()), point.value)
            for point in found[name].data.data_points
        }
        assert found[name].unit == unit
        assert points == {(frozenset(each.items()), v) for each, v in samples(metric, status)}
    assert found["herring.rank.sent_bytes"].unit == "By"
    assert found["herring.rank.sent_bytes"].data.is_monotonic
    now += 0.6  # That status is no longer fresh.
    later = reader.get_metrics_data()
    assert not later or not any(
        metric.data.data_points
        for resource in later.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ), "a job that is gone has no metrics"
    provider.shutdown()


def test_opentelemetry_reads_what_this_rank_has_counted() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    program = """
import herring, json
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from herring.observe import otel
reader = InMemoryMetricReader()
otel.instrument(meter_provider=MeterProvider([reader]))
assert not reader.get_metrics_data()
otel._FRESH_SECONDS = 0.0
herring.init()
scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
for metric in sorted(scope.metrics, key=lambda metric: metric.name):
    (point,) = metric.data.data_points
    print(metric.name, metric.unit, point.attributes["rank"], point.attributes["job"])
"""
    done = warm.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HERRING_RANK": "0", "HERRING_SIZE": "1", "HERRING_JOB": "alone"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "herring.rank.credit_bytes By 0 alone",
        "herring.rank.kept_bytes By 0 alone",
        "herring.rank.received_bytes By 0 alone",
        "herring.rank.sent_bytes By 0 alone",
    ]


def test_opentelemetry_s_counters_go_on_in_the_next_job() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    program = """
import herring, numpy
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from herring.observe import otel
reader = InMemoryMetricReader()
otel._FRESH_SECONDS = 0.0
def sent():
    scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
    (found,) = [m for m in scope.metrics if m.name == "herring.rank.sent_bytes"]
    (point,) = found.data.data_points
    return point.value
herring.init()
otel.instrument(meter_provider=MeterProvider([reader]))
for number in range(100):
    herring.allreduce(numpy.ones(1000, numpy.float32))
first = sent()
herring.allreduce(numpy.ones(1 << 20, numpy.float32))  # no export reads this before the end
whole = herring.stats()["bytes_sent"]
herring.shutdown()
herring.init()
herring.allreduce(numpy.ones(10, numpy.float32))
second = sent()
print(first, whole, second, herring.stats()["bytes_sent"])
"""
    done = warm.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HERRING_RANK": "0", "HERRING_SIZE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    first, whole, second, own = map(int, done.stdout.split())
    assert first <= whole < second == whole + own


def test_opentelemetry_that_is_not_installed_is_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(
        ConfigurationError, match=r"opentelemetry-api is not installed.*pip install"
    ):
        otel.instrument()


def test_names_in_opentelemetry_are_different_and_have_units() -> None:
    names = [otel.instrument_name(metric) for metric in METRICS]
    assert len({name for name, _ in names}) == len(names)
    assert ("herring.job.uptime_seconds", "s") in names
    assert ("herring.steps", "") in names and ("herring.rank.score_ratio", "1") in names


def test_the_pages_about_statuses_and_metrics_are_current() -> None:
    tool = ROOT / "tools" / "make_status_docs.py"
    done = warm.run(
        [sys.executable, str(tool), "--check"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    missing = [metric.name for metric in METRICS if f"| `{metric.name}` |" not in page]
    assert not missing


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_examples_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "metrics.md").read_text(encoding="utf-8")
    scrape, rules = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    for kind, text in (("config", scrape), ("rules", rules)):
        file = tmp_path / f"{kind}.yml"
        token = tmp_path / "token"
        token.touch()
        text = re.sub(r"(?<=credentials_file: )\S+", str(token), text)
        file.write_text(text, encoding="utf-8")
        done = warm.run(["promtool", "check", kind, str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
