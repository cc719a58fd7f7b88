"""What several studies do: time the same all-reduce by several kinds, on one network after another.

Outcomes of one kind differ from run to run where paths are long or lossy, so there may be several
runs, and links that this machine could not keep to their model give no figure.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping

from herring_lab.emulate.cluster import LateLinksError
from herring_lab.study.bench import Network, Point, measure

__all__ = ["Case", "Times", "counted", "measure_cases", "measure_on_time", "show_delay"]

_ATTEMPTS = 3  # something else may have had the processors


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of all-reduce to measure.

    Attributes:
      column: that its times fill.
      runs: how many.
      library: ``herring`` or a peer.
      algorithm: of the library; None: its own choice.
      settings: environment variables of Herring.
    """

    column: str
    runs: int = 1
    library: str = "herring"
    algorithm: str | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def point(self, workers: int, size: int) -> Point:
        """Returns what is measured: Herring has as many servers as workers, a peer none."""
        servers = workers if self.library == "herring" else 0
        if self.algorithm is not None and servers:
            servers = 1  # coordinates, and sums nothing
        return Point(workers, servers, size, self.library, self.algorithm, settings=self.settings)


@dataclasses.dataclass
class Times:
    """Medians in seconds, by column, one per run that was on time.

    Attributes:
      found: none of a column whose runs were all late.
      void: a line about each run that gave no figure.
    """

    found: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    void: list[str] = dataclasses.field(default_factory=list)

    def median(self, column: str) -> float | None:
        """Returns the median over the runs; None: there is none."""
        return statistics.median(self.found[column]) if column in self.found else None

    def worst(self, column: str) -> float | None:
        """Returns the slowest run; None: there is none."""
        return max(self.found.get(column, ()), default=None)


def measure_cases(
    network: Network,
    cases: list[Case],
    workers: int,
    size: int,
    iterations: int,
    warmup: int,
    begin: Callable[[str], None],
    where: str,
) -> Times:
    """Times all-reduces of `size` bytes over `workers` hosts by each case.

    Args:
      network: the links.
      cases: what to measure.
      workers: how many.
      size: bytes.
      iterations: timed ones of each run.
      warmup: iterations before.
      begin: told what is measured, before each run.
      where: what these links are called there.
    """
    times = Times()
    for case in cases:
        for _run in range(case.runs):
            what = f"{where}, {case.column.replace('_', ' ')}"
            begin(what)
            point = case.point(workers, size)
            try:
                seconds = measure_on_time(network, point, iterations, warmup)
            except LateLinksError as error:
                times.void.append(f"void: {what}: {error.report.text()}")
            else:
                times.found.setdefault(case.column, []).append(seconds)
    return times


def show_delay(seconds: float) -> str:
    """Returns e.g. ``500 us`` or ``5 ms``."""
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"


def counted(report: Callable[[int, int, str], None], total: int) -> Callable[[str], None]:
    """Returns what to call before each of `total` measurements, with what it is."""
    number = itertools.count()
    return lambda what: report(next(number), total, what)


def measure_on_time(network: Network, point: Point, iterations: int, warmup: int) -> float:
    """Returns the median in seconds of a run during which links were kept to their model.

    Raises:
      ClusterError: the job failed.
      LateLinksError: they were not, in several attempts.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return float(measure(network, point, iterations, warmup)["p50_seconds"])
        except LateLinksError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
