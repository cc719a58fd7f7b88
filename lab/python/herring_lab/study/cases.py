"""Times several kinds of all-reduces on one network after another, for several studies.

On long or lossy paths, the times of one kind differ from run to run, so there may be several runs.
A run gives no figure if this machine could not keep the links to their model.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping
from typing import TypeVar

from herring_lab.emulate.cluster import LateLinksError
from herring_lab.study.bench import Network, Point, measure

_Result = TypeVar("_Result")
_ATTEMPTS = 3  # other programs may have used the processors meanwhile


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of all-reduce to measure.

    Attributes:
      column: the column for its times.
      runs: the number of runs.
      library: ``herring``, or one of ``herring_lab.competitors.PEERS``.
      algorithm: an algorithm of the library; None: the library chooses.
      settings: environment variables of Herring.
    """

    column: str
    runs: int = 1
    library: str = "herring"
    algorithm: str | None = None
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def point(self, workers: int, size: int) -> Point:
        """Returns the point to measure; Herring has as many servers as workers, others none."""
        servers = workers if self.library == "herring" else 0
        if self.algorithm is not None and servers:
            servers = 1  # this server only coordinates
        return Point(workers, servers, size, self.library, self.algorithm, settings=self.settings)


@dataclasses.dataclass
class Times:
    """Medians in seconds by column, one for each run whose links kept to their model.

    Attributes:
      found: the medians; a column is missing if none of its runs gave a figure.
      void: a line about each run that gave no figure.
    """

    found: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    void: list[str] = dataclasses.field(default_factory=list)

    def median(self, column: str) -> float | None:
        """Returns the median over the runs; None without a run that gave a figure."""
        return statistics.median(self.found[column]) if column in self.found else None

    def worst(self, column: str) -> float | None:
        """Returns the slowest run; None without a run that gave a figure."""
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
    """Times all-reduces with each case.

    Args:
      network: the links.
      cases: the cases to measure.
      workers: the number of workers, each on a host of its own.
      size: bytes of the array.
      iterations: timed iterations of each run.
      warmup: untimed iterations before.
      begin: called before each run with a description of it.
      where: the part of this description that names the network.
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
    """Returns a delay as text, such as ``500 us`` or ``5 ms``."""
    return f"{seconds * 1e6:g} us" if seconds < 1e-3 else f"{seconds * 1e3:g} ms"


def counted(report: Callable[[int, int, str], None], total: int) -> Callable[[str], None]:
    """Returns a function to call before each of `total` measurements, with its description."""
    number = itertools.count()
    return lambda what: report(next(number), total, what)


def measure_on_time(network: Network, point: Point, iterations: int, warmup: int) -> float:
    """Returns the median seconds of a run during which links kept to their model.

    Raises:
      ClusterError: the job failed.
      LateLinksError: the links did not keep to their model in several attempts.
    """
    found = on_time(lambda: measure(network, point, iterations, warmup))
    return float(found["p50_seconds"])


def on_time(run: Callable[[], _Result]) -> _Result:
    """Returns what `run` returns, after more attempts if links did not keep to their model.

    Raises:
      LateLinksError: the links did not keep to their model in several attempts.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return run()
        except LateLinksError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")
