"""Trains a hyperplane with eager SGD, with one random worker late in every step.

The paper is that on partial collectives and eager SGD, section 6.2.1 and figure 10. All workers run
on this machine. They compute gradients and sleep for the rest of a step, so that waiting can be
saved with any number of cores.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from herring_lab.report import Chart, Table
from herring_lab.study.jobs import run_workers, sleep_until, start_together

MODES = ("full", "solo", "majority")
#: A note of every table.
SLEPT = "workers sleep instead of computing, so that waiting can be saved on few cores"

_WORKERS = 8
_CURVE = 12  # number of points of a curve
_CHECKED = 4096  # number of points of the validation set
# The variance of the labels' noise. It leaves a loss of about 4.7 in the end, as in the paper.
_NOISE = 4.5


@dataclasses.dataclass(frozen=True)
class Regression:
    """The regression and its training.

    Attributes:
      dimensions: dimensions of the hyperplane.
      batch: points of all workers in a step.
      rounds: the number of rounds of a training.
      step: milliseconds of computing in a step; workers sleep for what is left of them.
      rate: the learning rate at the start. It falls to 0 in proportion to the rounds that are left.
        With the gradient x (x.w - y) / batch, rates up to 2 / (1 + dimensions / batch) are stable,
        and half of this converges fastest.
    """

    dimensions: int = 8192
    batch: int = 2048
    rounds: int = 192
    step: int = 400
    rate: float = 0.1

    def rate_at(self, number: int) -> float:
        """Returns the learning rate of a round; rounds that flush have that of the last round."""
        return self.rate * (1 - min(number, self.rounds - 1) / self.rounds)


def hyperplane(mode: str, delay: int, how: Regression, workers: int = _WORKERS) -> dict[str, Any]:
    """Trains in one of `MODES`; in each step one random worker is `delay` milliseconds late.

    Returns:
      ``seconds`` that the rounds took, ``contributions`` in their results, the validation ``loss``
      in the end, the loss of the true coefficients (``least``), and the ``curve`` as (round,
      seconds, loss).

    Raises:
      ConfigurationError: the job failed.
    """
    function = "herring_lab.study.hyperplane:train"
    (row,) = run_workers(function, workers, mode=mode, delay=delay, how=dataclasses.asdict(how))
    return row


def hyperplane_tables(
    runs: Mapping[tuple[int, str], dict[str, Any]], how: Regression
) -> list[Table]:
    """Returns tables of speed-ups and losses by (delay, mode), and of losses over time."""
    from herring.partial import Quorum

    rows, curves = [], []
    for (delay, mode), run in runs.items():
        full = runs[delay, "full"]
        speedup = full["seconds"] / run["seconds"]
        ideal = 1.0 if mode == "full" else 1 + delay / how.step
        rows.append(
            {
                "delay_ms": delay,
                "mode": mode,
                "seconds": run["seconds"],
                "speedup": speedup,
                "model_speedup": ideal,
                "of_ideal_percent": 100 * speedup / ideal,
                "loss": run["loss"],
                "loss_above_full_percent": 100 * (run["loss"] / full["loss"] - 1),
                "contributions": run["contributions"],
            }
        )
        for number, seconds, loss in run["curve"]:
            curves.append(
                {
                    "run": f"{mode}, {delay} ms",
                    "round": number,
                    "seconds": seconds,
                    "loss": loss,
                }
            )
    least = next(iter(runs.values()))["least"]
    title = f"Hyperplane regression, {how.dimensions} dimensions, {_WORKERS} workers"
    notes = [
        SLEPT,
        f"{how.rounds} rounds of {how.batch} points, none used twice; in each step one random "
        f"worker is late; staleness {Quorum(1).staleness}",
        f"the learning rate falls from {how.rate:g} to 0 over the rounds",
        f"loss: mean squared error over {_CHECKED} other points; the true coefficients have "
        f"{least:.4g}",
        "contributions: gradients in the results of these rounds, which are those of all workers "
        "with 'full'; pending gradients are flushed before the loss is computed",
    ]
    return [
        Table(
            "partial-hyperplane",
            f"{title}, steps of {how.step} ms",
            rows,
            Chart(
                "delay_ms",
                ["speedup", "model_speedup"],
                "delay of one worker in each step (ms)",
                "speed-up over full synchrony (ratio)",
                by="mode",
            ),
            notes,
        ),
        Table(
            "partial-hyperplane-loss",
            f"{title}: validation loss over time",
            curves,
            Chart(
                "seconds",
                ["loss"],
                "time (s)",
                "validation loss (mean squared error)",
                by="run",
                x_scale="log",
                y_scale="log",
            ),
            [SLEPT, "the loss is that of the parameters that rank 0 had at that time"],
        ),
    ]


# -- what each worker runs ------------------------------------------------------------------------


class _Points:
    """Random points and their labels, which are the height of a hyperplane plus noise."""

    def __init__(self, dimensions: int, seed: list[int]) -> None:
        self.truth = np.random.default_rng(0).standard_normal(dimensions, np.float32)
        self._random = np.random.default_rng(seed)

    def draw(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        points = self._random.standard_normal((number, self.truth.size), np.float32)
        noise = self._random.standard_normal(number, np.float32)
        return points, points @ self.truth + np.float32(math.sqrt(_NOISE)) * noise


class _Full:
    """All-reduces that wait for all workers, with the interface of `_Partial`."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.contributions = 0

    def results(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        import herring

        herring.allreduce(gradient)
        self.contributions += self._workers
        yield gradient

    def flush(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        yield from ()


class _Partial:
    """A partial reduction, which yields all results since the last step, each for one update.

    Attributes:
      contributions: the number of contributions in the results so far.
    """

    def __init__(self, dimensions: int, mode: str) -> None:
        from herring.partial import PartialReduction

        self._series = PartialReduction(dimensions, "float32", sync=mode)
        self._result = np.empty(dimensions, np.float32)
        self._newest: dict[int, int] = {}

    @property
    def contributions(self) -> int:
        return sum(self._newest.values())

    def results(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        for info in self._series.step(gradient, self._result):
            self._newest.update((one.rank, one.upto) for one in info.contributors)
            yield self._result

    def flush(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        gradient[:] = 0
        for _ in self._series.flush(gradient):
            yield gradient


def train(mode: str, delay: int, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs one worker of `hyperplane`.

    Raises:
      RuntimeError: the workers' replicas differ in the end.
    """
    import herring

    setting = Regression(**how)
    rank, size = herring.rank(), herring.size()
    own = setting.batch // size
    source = _Points(setting.dimensions, [1, rank])
    # Which rank is late in each step; all ranks draw the same numbers.
    late = np.random.default_rng(5).integers(0, size, 1 << 16)
    weights = np.zeros(setting.dimensions, np.float32)
    gradient = np.zeros_like(weights)
    exchange = _Full(size) if mode == "full" else _Partial(weights.size, mode)
    kept: list[tuple[int, float, np.ndarray]] = []
    every = max(setting.rounds // _CURVE, 1)
    points, labels = source.draw(own)
    start = start_together(0.5)
    sleep_until(start)
    done = steps = 0
    while done < setting.rounds:
        begun = time.monotonic()
        np.matmul(points.T, points @ weights - labels, out=gradient)
        gradient /= own
        points, labels = source.draw(own)
        pause = delay if late[steps] == rank else 0
        steps += 1
        sleep_until(begun + (setting.step + pause) / 1000)
        for result in exchange.results(gradient):
            weights -= setting.rate_at(done) * result
            done += 1
            now = time.monotonic() - start
            if done == setting.rounds:  # a rank that has missed rounds may get more at once
                took, contributions = now, exchange.contributions
            if rank == 0 and done <= setting.rounds and done % every == 0:
                kept.append((done, now, weights.copy()))
    for result in exchange.flush(gradient):
        weights -= setting.rate_at(done) * result
        done += 1
    seconds = max(herring.allgather_object(took))
    replicas = herring.allgather_object(weights.tobytes())
    if any(replica != replicas[0] for replica in replicas):
        raise RuntimeError("replicas differ")
    if rank != 0:
        return []
    *losses, loss, least = _losses([*(copy for _, _, copy in kept), weights])
    curve = [(number, at, value) for (number, at, _), value in zip(kept, losses)]
    found = {"seconds": seconds, "contributions": contributions, "loss": loss, "least": least}
    return [{**found, "curve": curve}]


def _losses(weights: list[np.ndarray]) -> list[float]:
    """Returns the validation losses of these weights and, last, of the true coefficients."""
    source = _Points(weights[0].size, [2])
    columns = np.stack([*weights, source.truth], axis=1)
    part = 512  # number of points that fit into memory together
    total = np.zeros(columns.shape[1])
    for _ in range(_CHECKED // part):
        points, labels = source.draw(part)
        total += np.square(points @ columns - labels[:, None], dtype=np.float64).sum(0)
    return [float(one) for one in total / _CHECKED]
