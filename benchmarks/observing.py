"""Measures what it costs that a job is observed (docs/how-to/late-ranks.md).

A step has 1,000 gradients of 1 kB and no computing. Each turn is a job of its own, observed or not.
Rank 0 prints the medians over all turns, and the ratios of neighbouring turns. Their middle half
says how much of a ratio is chance.

With --inside, all turns are in one observed job, and pause its recorder or not. Load that changes
between jobs does not matter then, so this is the measure for a busy machine. Reports go on all the
time; rank 0 says which part of the processor time their threads take.

Usage:
  herring run -n 4 -- python benchmarks/observing.py
  herring run -n 4 -- python benchmarks/observing.py --inside --turns 2000 --steps 20
  herring lab run --workers 4 --servers 4 --rate 200mbit -- python benchmarks/observing.py --turns 1

Dedicated servers serve one job, so a run with them has one turn. HERRING_OBSERVE then says which;
start such runs in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import herring
from herring.arrays.runtime import job

GRADIENTS = [(256, "float32")] * 1000
# These also carry heartbeats, which are there without observing too.
REPORTING = ("herring-report", "herring-meet", "herring-control")


class Steps:
    """Takes steps, and measures them."""

    def __init__(self) -> None:
        """Makes a plan, and takes the first steps."""
        self._plan = herring.PlannedReduction(GRADIENTS, name="gradients")
        for _ in range(10):
            self._step()
        herring.barrier()

    def _step(self) -> None:
        self._plan.begin()
        self._plan.ready_all(range(len(GRADIENTS)))
        self._plan.wait()

    def take(self, steps: int) -> tuple[float, float]:
        """Returns the median time of a step, and this rank's processor time for one."""
        times = []
        before = time.process_time()
        for _ in range(steps):
            start = time.perf_counter()
            self._step()
            times.append(time.perf_counter() - start)
        return statistics.median(times), (time.process_time() - before) / steps

    def close(self) -> None:
        """Closes the plan."""
        self._plan.close()


def whether_observed(turns: int) -> Iterator[bool]:
    """Yields on, off, off, on ...: neither comes first more often."""
    for number in range(turns):
        yield number % 4 in (0, 3)


def over_ranks(processor: float) -> float:
    """Returns the sum over all ranks."""
    total = np.array([processor])
    herring.allreduce(total, op="sum")
    return float(total[0])


def in_jobs(turns: int, steps: int) -> dict[bool, list[tuple[float, float]]]:
    """Returns what each turn took: the time of a step, and the processor time of all ranks."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in whether_observed(turns):
        observe = os.environ.get("HERRING_OBSERVE", "true") == "true" if turns == 1 else turn
        herring.init(observe=observe)
        taking = Steps()
        step, processor = taking.take(steps)
        found[observe].append((step, over_ranks(processor)))
        taking.close()
        herring.shutdown()
    return found


def inside(turns: int, steps: int) -> dict[bool, list[tuple[float, float]]]:
    """Returns the same of turns in one job, after a line about its threads."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    herring.init(observe=True)
    taking = Steps()
    taking.take(500)  # the first reports fall into these
    reporting, whole = of_threads(REPORTING), time.process_time()
    for observe in whether_observed(turns):
        job().pause_recording(not observe)
        taking.take(2)  # with entries that began before this turn
        step, processor = taking.take(steps)
        found[observe].append((step, processor))
    reporting, whole = of_threads(REPORTING) - reporting, time.process_time() - whole
    reporting, whole = over_ranks(reporting), over_ranks(whole)
    if herring.rank() == 0:
        print(f"threads that report and listen: {reporting / whole:.2%} of the processor time")
    # Each rank has measured its own processor time in each turn.
    for values in found.values():
        processors = np.array([processor for _, processor in values])
        herring.allreduce(processors, op="sum")
        medians = [step for step, _ in values]
        values[:] = list(zip(medians, processors.tolist(), strict=True))
    taking.close()
    herring.shutdown()
    return found


def of_threads(names: tuple[str, ...]) -> float:
    """Returns the processor time of this process's threads with these names, in seconds."""
    total = 0
    for folder in Path("/proc/self/task").iterdir():
        if (folder / "comm").read_text().strip() in names:
            total += int((folder / "schedstat").read_text().split()[0])
    return total * 1e-9


def show(found: dict[bool, list[tuple[float, float]]]) -> None:
    """Prints what all turns took."""
    for observe, turns in found.items():
        if not turns:
            continue
        step, processor = (statistics.median(values) for values in zip(*turns, strict=True))
        print(
            f"observe={str(observe).lower()}: a step takes {step * 1e3:.3f} ms, and all ranks "
            f"{processor * 1e3:.3f} ms of processors (medians of {len(turns)} turns)"
        )
    pairs = list(zip(found[True], found[False]))
    if len(pairs) < 2:
        return
    for which, what in enumerate(("time", "processors")):
        ratios = [on[which] / off[which] for on, off in pairs]
        low, middle, high = statistics.quantiles(ratios, n=4)
        error = 0.93 * (high - low) / len(ratios) ** 0.5  # of a median, for a normal distribution
        print(
            f"observed / not observed: {what} {middle:.3f} +- {error:.3f} "
            f"(half of all pairs: {low:.3f} to {high:.3f})"
        )


def main() -> None:
    """Takes turns, and prints what they took."""
    parser = argparse.ArgumentParser(description="Measures what it costs to observe a job.")
    parser.add_argument("--inside", action="store_true", help="turns in one job, not of jobs")
    parser.add_argument("--turns", type=int, default=16, help="turns in all (16)")
    parser.add_argument("--steps", type=int, default=4000, help="steps of a turn (4000)")
    options = parser.parse_args()
    found = (inside if options.inside else in_jobs)(options.turns, options.steps)
    if os.environ.get("HERRING_RANK", "0") == "0":
        show(found)


if __name__ == "__main__":
    main()
