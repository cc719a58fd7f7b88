"""The metrics of a job for OpenTelemetry, by choice: needs opentelemetry-api.

```
from herring.observe import otel

herring.init()
otel.instrument()
```

The names are those of `herring.observe.metrics` in OpenTelemetry's form, with dots and units:
``herring_rank_sent_bytes_total`` is ``herring.rank.sent_bytes``, in ``By``. An exporter for
Prometheus turns them into the old names.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import herring
from herring.arrays import runtime
from herring.base.parts import import_optional
from herring.base.version import version
from herring.errors import HerringError
from herring.observe import client
from herring.observe.metrics import METRICS, SCOPES, Metric, samples
from herring.observe.schema import StatusError, parse
from herring.rendezvous.settings import value_of

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

_UNITS = {"bytes": "By", "seconds": "s", "ratio": "1"}
_FRESH_SECONDS = 0.5  # All instruments of one collection see the same status.


def instrument(
    where: str | None = None, *, meter_provider: MeterProvider | None = None, timeout: float = 2.0
) -> None:
    """Registers observable gauges and counters, which OpenTelemetry reads when it exports.

    Args:
      where: None registers what this rank has counted (`herring.stats`), in this job and in those
        that follow or that an elastic job begins in this process: call it once on each rank. A
        socket or HOST:PORT, as `herring status` takes it, registers all metrics of the job: call it
        in one process.
      meter_provider: Where to register; OpenTelemetry's global provider by default.
      timeout: Seconds that the job may take to answer; later, an export lacks its metrics.

    Raises:
      ConfigurationError: opentelemetry-api is not installed; the error says how to install it.
      StatusError: `where` is neither a path that exists nor HOST:PORT.
    """
    api = import_optional(
        "opentelemetry.metrics", "opentelemetry-api", "exports the metrics", "otel"
    )
    read = _counted().status if where is None else _reader(client.endpoint(where), timeout)
    latest = _Latest(read)
    meter = api.get_meter("herring", version(), meter_provider)
    for metric in METRICS:
        if where is None and metric.name not in _OWN:
            continue
        create = (
            meter.create_observable_counter
            if metric.kind == "counter"
            else meter.create_observable_gauge
        )
        name, unit = instrument_name(metric)
        create(name, [_callback(metric, latest, api.Observation)], unit, metric.help)


def instrument_name(metric: Metric) -> tuple[str, str]:
    """Returns the name and the unit that a metric has in OpenTelemetry."""
    words = metric.name.removesuffix("_total").split("_")
    scope = 2 if words[1] in SCOPES else 1
    return ".".join([*words[:scope], "_".join(words[scope:])]), _UNITS.get(words[-1], "")


def _callback(
    metric: Metric, latest: _Latest, observation: Callable[..., Observation]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        status = latest.get()
        if status is not None:
            for labels, value in samples(metric, status):
                yield observation(value, labels)

    return observe


class _Latest:
    """The latest status, which is read again when it is no longer fresh."""

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._status: Mapping[str, Any] | None = None
        self._when = -_FRESH_SECONDS

    def get(self) -> Mapping[str, Any] | None:
        """Returns the status, or None if it cannot be had: an export must not fail for that."""
        with self._lock:
            if time.monotonic() - self._when >= _FRESH_SECONDS:
                try:
                    self._status = self._read()
                except HerringError:
                    self._status = None
                self._when = time.monotonic()
            return self._status


def _reader(place: client.Endpoint, timeout: float) -> Callable[[], Mapping[str, Any]]:
    return lambda: parse(client.ask(place, "json", timeout), place.name)


_SUMS = ("bytes_sent", "bytes_received")  # of `herring.stats`
_OWN = (
    "herring_rank_sent_bytes_total",
    "herring_rank_received_bytes_total",
    "herring_rank_credit_bytes",
    "herring_rank_kept_bytes",
)


class _Counted:
    """What this process has counted, in all its jobs: a counter must not begin again at 0."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may leave the job
        self._job = runtime.job() if herring.is_initialized() else None
        self._earlier: dict[tuple[int, int], dict[str, int]] = {}
        runtime.learn_job.append(self._learn)
        runtime.forget_job.append(self._forget)

    def status(self) -> Mapping[str, Any]:
        """Returns a status that has only this rank, with what it has counted.

        Raises:
          HerringError: This process has no job, or not any more.
        """
        with self._lock:
            job = self._job
            if job is None or not runtime.is_running(job):
                raise StatusError("this process has no job now")
            counted = job.stats()
            earlier = self._earlier.get((job.rank, job.node_rank), {})
            rank = {
                "rank": job.rank,
                "node": job.node_rank,
                "host": socket.gethostname(),
                **{name: counted[name] + earlier.get(name, 0) for name in _SUMS},
                "credit": counted["credit_bytes"],
                "kept": counted["kept_bytes"],
            }
        return {
            "job": value_of(os.environ, "HERRING_LABEL") or value_of(os.environ, "HERRING_JOB"),
            "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            "ranks": [rank],
            "missing": [],
        }

    def _learn(self, job: Any) -> None:
        with self._lock:
            self._job = job

    def _forget(self) -> None:
        with self._lock:
            job, self._job = self._job, None
            if job is None:
                return
            # Another rank in the next job is another series, which begins at 0.
            sums = self._earlier.setdefault((job.rank, job.node_rank), {})
            counted = job.stats()
            for name in _SUMS:
                sums[name] = sums.get(name, 0) + counted[name]


@functools.cache
def _counted() -> _Counted:
    return _Counted()
