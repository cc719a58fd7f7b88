"""Partial all-reduces: the micro-benchmark and hyperplane regression of eager SGD's evaluation.

Paper: partial collectives and eager SGD, sections 6.1 and 6.2.1. All processes run on this machine;
computing and delays are slept, not burnt, so that there is waiting to be saved whatever the number
of cores.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from herring.study.experiments import Chart, Table
from herring.study.jobs import run_workers, sleep_until, start_together

__all__ = ["hyperplane", "microbenchmark", "partial_study"]

_ELEMENTS = 1024  # float32: 4 kB
_DIMENSIONS = 8192
_MODES = ("full", "solo", "majority")


def partial_study(quick: bool, report: Callable[[int, int, str], None]) -> list[Table]:
    """Runs both; `quick` runs fewer processes and shorter steps."""
    delays = [20, 30, 40] if quick else [200, 300, 400]
    total = 1 + len(delays) * 2
    report(0, total, "micro-benchmark")
    first = microbenchmark(*((8, 16) if quick else (32, 64)))
    step = 40 if quick else 400
    rows = []
    for number, delay in enumerate(delays):
        pair = []
        for which, mode in enumerate(("full", "solo")):
            report(1 + 2 * number + which, total, f"hyperplane regression, {delay} ms, {mode}")
            pair.append(hyperplane(mode, 8, step, delay, 24 if quick else 64))
        ideal = 1 + delay / step
        speedup = pair[0]["seconds"] / pair[1]["seconds"]
        rows.append(
            {
                "delay_ms": delay,
                "full_s": pair[0]["seconds"],
                "solo_s": pair[1]["seconds"],
                "speedup": speedup,
                "ideal": ideal,
                "of_ideal": speedup / ideal,
                "full_loss": pair[0]["loss"],
                "solo_loss": pair[1]["loss"],
            }
        )
    second = Table(
        "partial-hyperplane",
        f"Hyperplane regression: 8 workers, steps of {step} ms, one random worker delayed",
        rows,
        Chart("delay_ms", ["speedup", "ideal"]),
        [
            "computing is slept, not burnt",
            "staleness 4; losses are of the validation set after equally many rounds",
        ],
    )
    return [first, second]


def microbenchmark(workers: int, iterations: int) -> Table:
    """Worker i comes i milliseconds late to an all-reduce of 4 kB; mean time in the call."""
    rows = []
    for row in run_workers("herring.study.partial:micro_worker", workers, iterations=iterations):
        ideal = {
            "full": (workers - 1) / 2,
            "solo": 0.0,
            "majority": sum(range((workers + 1) // 2)) / workers,
        }[row["mode"]]
        rows.append({**row, "ideal_ms": ideal})
    return Table(
        "partial-micro",
        f"Partial all-reduce of 4 kB: {workers} processes, worker i late by i ms, "
        f"{iterations} iterations",
        rows,
        None,
        [
            f"one machine of {os.cpu_count()} cores; delays are slept, not burnt",
            "mean and median over workers and iterations of the time in the call; 'least' is that "
            "of active contributors in any iteration",
        ],
    )


def hyperplane(mode: str, workers: int, step: int, delay: int, rounds: int) -> dict[str, Any]:
    """Trains; returns the seconds it took and the validation loss."""
    (row,) = run_workers(
        "herring.study.partial:hyperplane_worker",
        workers,
        mode=mode,
        step=step,
        delay=delay,
        rounds=rounds,
    )
    return row


# -- what each worker runs ------------------------------------------------------------------------


def micro_worker(iterations: int) -> list[dict[str, Any]]:
    """One worker of `microbenchmark`."""
    import herring
    from herring.partial import PartialReduction

    rows = []
    for mode in _MODES:
        array = np.ones(_ELEMENTS, np.float32)
        series = None
        if mode != "full":
            series = PartialReduction(_ELEMENTS, "float32", sync=mode)
        times, active = [], []
        for iteration in range(iterations + 4):
            sleep_until(start_together(0.02) + herring.rank() / 1000)
            start = time.perf_counter()
            if series is None:
                herring.allreduce(array)
            else:
                info = series.allreduce(array)
            took = time.perf_counter() - start
            if iteration >= 4:
                times.append(took)
            if series is not None:
                active.append(info.active)
        if series is not None:
            for _ in series.flush(array):
                pass
        everyone = np.array(herring.allgather_object(times)) * 1e3
        rows.append(
            {
                "mode": mode,
                "mean_ms": float(everyone.mean()),
                "median_ms": float(np.median(everyone)),
                "least_active": min(active[4:], default=herring.size()),
                "mean_active": float(np.mean(active[4:])) if active else float(herring.size()),
            }
        )
    return rows


def hyperplane_worker(mode: str, step: int, delay: int, rounds: int) -> list[dict[str, Any]]:
    """One worker of `hyperplane`."""
    import herring
    from herring.partial import PartialReduction, Quorum

    rank, size = herring.rank(), herring.size()
    batch = 2048 // size
    truth = np.random.default_rng(1).standard_normal(_DIMENSIONS).astype(np.float32)
    check = np.random.default_rng(2).standard_normal((256, _DIMENSIONS), np.float32)
    noise = np.random.default_rng(3 + rank)
    stragglers = np.random.default_rng(5).integers(0, size, 1 << 16)
    weights = np.zeros(_DIMENSIONS, np.float32)
    gradient, result = np.zeros_like(weights), np.zeros_like(weights)
    series = None
    if mode != "full":
        quorum = Quorum(1 if mode == "solo" else (size + 1) // 2, staleness=4)
        series = PartialReduction(_DIMENSIONS, "float32", sync=quorum)
    points = noise.standard_normal((4 * batch, _DIMENSIONS), np.float32)
    start = start_together(0.5)
    sleep_until(start)
    done = steps = 0
    while done < rounds:
        begun = time.monotonic()
        part = points[steps % 4 * batch :][:batch]
        np.matmul(part.T, part @ (weights - truth), out=gradient)
        gradient *= 2 / batch
        late = delay if stragglers[steps] == rank else 0
        steps += 1
        sleep_until(begun + (step + late) / 1000)
        if series is None:
            herring.allreduce(gradient)
            weights -= 0.02 * gradient
            done += 1
            continue
        missed = 0
        while series.ready:
            series.take(result)
            weights -= 0.02 * result
            missed += 1
        series.contribute(gradient, waits=missed == 0)
        if missed == 0:
            series.take(result)
            weights -= 0.02 * result
        done += max(missed, 1)
    took = time.monotonic() - start
    if series is not None:
        gradient[:] = 0
        for _ in series.flush(gradient):
            weights -= 0.02 * gradient
    loss = float(np.mean((check @ (weights - truth)) ** 2))
    seconds = max(herring.allgather_object(took))
    digests = herring.allgather_object(weights.tobytes())
    if any(one != digests[0] for one in digests):
        raise RuntimeError("replicas differ")
    return [{"seconds": seconds, "loss": loss}]
