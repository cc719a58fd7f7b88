"""Runs the same jobs in virtual time and on emulated hosts, and compares their times.

The code that runs is the same. Three all-reduces calibrate the processor costs of the simulation.
Two use links without a rate; one of these is bound by bytes, the other by frames. The third has the
smallest window over links with a rate, whose packets a program forwards. All other settings are
predicted.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable
from typing import Any

from herring.bench import models
from herring_lab.emulate.cluster import MTU, LateLinksError
from herring_lab.report import Chart, Table
from herring_lab.simulate.job import JobCosts, JobScenario, PathModel
from herring_lab.simulate.job import run as simulate
from herring_lab.study.bench import Network, Point
from herring_lab.study.cases import counted, measure_on_time, show_delay
from herring_lab.study.experiments import Scale

_WARMUP = 15  # by then credit has tried all windows
_BYTES = 50_000_000  # size of an all-reduce over links without a rate
_FRAMES = "16KiB"  # credit of the all-reduce that is bound by frames
_SMALLEST = "8KiB"  # credit of the all-reduce over links with a rate
_CORES = 2  # cores of this machine that all hosts share, without what the switch takes


@dataclasses.dataclass(frozen=True)
class Setting:
    """Hosts and links. The array has as many bytes as a link carries in half a second.

    Attributes:
      workers, servers: the number of hosts of each kind.
      slower: the rate of the links is the study's rate divided by this; 0: no limit.
      delay: seconds, one way.
      loss: probability that a packet is lost.
      credit: a fixed credit as text with a unit; empty: self-controlled.
    """

    workers: int
    servers: int
    slower: int = 1
    delay: float = 0.0
    loss: float = 0.0
    credit: str = ""

    @property
    def text(self) -> str:
        """The setting in words, for tables."""
        return f"{self.workers} + {self.servers}, {show_delay(self.delay)}" + (
            f", credit {self.credit}" if self.credit else ""
        )


#: Settings with 2 to 8 workers, 0 to 10 ms of delay, k of n servers, limited and unlimited links.
SETTINGS = (
    *(Setting(2, 2, delay=delay) for delay in (2e-4, 2e-3, 1e-2)),
    *(Setting(4, 4, delay=delay) for delay in (5e-5, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)),
    *(Setting(4, servers, delay=2e-4) for servers in (0, 1, 2, 3)),
    *(Setting(4, servers, delay=2e-3) for servers in (0, 2)),
    Setting(8, 8, 2, delay=5e-4),
    Setting(8, 4, 2, delay=5e-4),
    Setting(8, 0, 2, delay=5e-4),
    Setting(4, 4, delay=5e-4, credit="16KiB"),
    Setting(4, 4, delay=5e-4, credit="32KiB"),
    Setting(4, 4, delay=5e-3, credit="64KiB"),
    Setting(2, 2, 0),
    Setting(8, 8, 0),
)


def predictions(scale: Scale) -> list[Table]:
    """Calibrates processor costs, then times every setting in the lab and in virtual time."""
    settings = SETTINGS[:2] if scale.quick else SETTINGS
    begin = counted(scale.report, len(settings) + 3)
    warmup = 1 if scale.quick else _WARMUP
    unlimited = _calibrate(scale, warmup, begin)
    limited = _calibrate_limited(scale, begin, unlimited)
    rows: list[dict[str, Any]] = []
    void = []
    for setting in settings:
        begin(setting.text)
        size = _size(setting, scale)
        try:
            seconds = _measure(setting, size, scale, warmup)
        except LateLinksError as error:
            void.append(f"void: {setting.text}: {error.report.text()}")
            continue
        costs = limited if setting.slower else unlimited
        predicted = simulate(_scenario(setting, size, scale, costs), scale.iterations + warmup)
        rows.append(
            {
                "setting": setting.text,
                "rate_mbit": _rate(setting, scale) / 1e6 or None,
                "limit_seconds": _limit(setting, size, scale),
                "measured_seconds": seconds,
                "predicted_seconds": predicted.median(warmup),
                "error_percent": 100 * (predicted.median(warmup) / seconds - 1),
            }
        )
    within = sum(abs(row["error_percent"]) <= 5 for row in rows)
    notes = [
        f"medians of {scale.iterations} rounds after {warmup}; {within} of {len(rows)} within 5 %",
        f"costs of processors, from 4 + 4 hosts without a rate: {_words(unlimited)}; with one: "
        f"{_words(limited)}",
        *void,
    ]
    chart = Chart("measured_seconds", ["predicted_seconds"], "measured (s)", "predicted (s)")
    title = "The same jobs in virtual time and on emulated hosts"
    files = {"costs.json": _coarse_costs(unlimited)}
    return [Table("predictions", title, rows, chart, notes, files)]


def _coarse_costs(costs: JobCosts) -> dict[str, float | str]:
    """Returns the costs in the form that ``herring simulate --costs`` reads.

    In the coarse model a frame is read by two calls, for header and payload, and its answer costs
    the same. A byte is received on one side and sent on the other, with its share of a packet.
    """
    return {
        "frame": 2 * costs.call,
        "byte": (costs.byte_received + costs.byte_sent) / 2 + costs.packet / MTU,
        "wakeup": costs.wakeup,
        "source": f"herring study predictions, {platform.node()}, {_CORES} processors",
    }


def _calibrate(scale: Scale, warmup: int, begin: Callable[[str], None]) -> JobCosts:
    """Scales the costs of frames and of bytes in turn, until they fit two measurements."""
    base = JobCosts()
    costs = base
    by_frames, by_bytes = Setting(4, 4, 0, credit=_FRAMES), Setting(4, 4, 0, credit="1MiB")
    size = _BYTES // 10 if scale.quick else _BYTES
    found = []
    for setting in (by_frames, by_bytes):
        begin(f"calibration: {setting.text}")
        found.append((setting, _measure(setting, size, scale, warmup)))
    frames = bytes_ = 1.0
    for _ in range(8):
        for setting, seconds in found:
            scenario = _scenario(setting, size, scale, costs)
            factor = seconds / simulate(scenario, warmup + 3).median(warmup)
            if setting is by_frames:
                frames *= factor
            else:
                bytes_ *= factor
            costs = JobCosts(
                base.wakeup * frames,
                base.call * frames,
                base.byte_received * bytes_,
                base.byte_sent * bytes_,
                base.packet * bytes_,
            )
    return costs


def _calibrate_limited(scale: Scale, begin: Callable[[str], None], costs: JobCosts) -> JobCosts:
    """Scales the costs of frames and packets to a measurement over links with a rate.

    With a window of one segment, a turn takes the known time of the way and the processors' time.
    """
    setting = Setting(4, 4, credit=_SMALLEST)
    begin(f"calibration: {setting.text}, {_rate(setting, scale) / 1e6:g} Mbit/s")
    size = _size(setting, scale) // 4

    def scaled(factor: float) -> JobCosts:
        dear = {name: getattr(costs, name) * factor for name in ("wakeup", "call", "packet")}
        return dataclasses.replace(costs, **dear)

    def predict(factor: float) -> float:
        return simulate(_scenario(setting, size, scale, scaled(factor)), 3).median(1)

    free = predict(0)
    wanted = _measure(setting, size, scale, 1) - free
    factor = 1.0
    for _ in range(8):
        factor = min(max(factor * wanted / max(predict(factor) - free, 1e-9), 0.1), 100)
    return scaled(factor)


def _size(setting: Setting, scale: Scale) -> int:
    rate = _rate(setting, scale)
    return int(rate / 8 / 2) // 4 * 4 if rate else _BYTES


def _rate(setting: Setting, scale: Scale) -> float:
    return scale.network.rate_bits / setting.slower if setting.slower else 0.0


def _limit(setting: Setting, size: int, scale: Scale) -> float | None:
    rate = _rate(setting, scale)
    if not rate:
        return None
    if setting.servers >= setting.workers:
        return models.herring_time(setting.workers, size, rate / 8)
    return models.colocated_time(setting.workers, setting.servers, size, rate / 8)


def _scenario(setting: Setting, size: int, scale: Scale, costs: JobCosts) -> JobScenario:
    return JobScenario(
        setting.workers,
        setting.servers,
        size,
        rate=_rate(setting, scale),
        queue=scale.network.queue_seconds,
        path=PathModel(setting.delay, 0.0, setting.loss),
        cores=_CORES,
        shared_cores=True,
        costs=costs,
        settings={"credit": setting.credit} if setting.credit else {},
    )


def _measure(setting: Setting, size: int, scale: Scale, warmup: int) -> float:
    rate = _rate(setting, scale)
    network = Network(
        rate or None,  # type: ignore[arg-type]
        scale.network.queue_seconds,
        delay=setting.delay,
        loss=setting.loss,
        strict=bool(rate),
    )
    credit = {"HERRING_CREDIT": setting.credit} if setting.credit else {}
    point = Point(setting.workers, setting.servers, size, settings=credit)
    return measure_on_time(network, point, scale.iterations, warmup)


def _words(costs: JobCosts) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {seconds * 1e9:.3g} ns"
        for name, seconds in dataclasses.asdict(costs).items()
    )
