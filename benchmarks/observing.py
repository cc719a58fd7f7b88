"""Measures what it costs that a job is observed (docs/how-to/late-ranks.md).

Each turn is a job of its own that takes steps with 1,000 gradients of 1 kB, observed or not. Rank 0
prints the medians over all turns, and their ratio.

Usage:
  herring run -n 4 -- python benchmarks/observing.py
  herring lab run --workers 4 --servers 4 --rate 200mbit -- python benchmarks/observing.py --turns 1

Dedicated servers serve one job, so a run with them has one turn. HERRING_OBSERVE then says which;
start such runs in turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np

import herring

GRADIENTS = [(256, "float32")] * 1000


def turn(steps: int, observe: bool) -> tuple[float, float]:
    """Returns the median time of a step and the processor time of all ranks for it, in seconds."""
    herring.init(observe=observe)
    plan = herring.PlannedReduction(GRADIENTS, name="gradients")

    def step() -> None:
        plan.begin()
        plan.ready_all(range(len(GRADIENTS)))
        plan.wait()

    for _ in range(10):
        step()
    herring.barrier()
    times = []
    before = time.process_time()
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    processor = np.array([(time.process_time() - before) / steps])
    herring.allreduce(processor, op="sum")
    plan.close()
    herring.shutdown()
    return statistics.median(times), float(processor[0])


def main() -> None:
    """Takes turns, and prints what they took."""
    parser = argparse.ArgumentParser(description="Measures what it costs to observe a job.")
    parser.add_argument("--turns", type=int, default=16, help="jobs in all (16)")
    parser.add_argument("--steps", type=int, default=4000, help="steps of a job (4000)")
    options = parser.parse_args()
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    rank = os.environ.get("HERRING_RANK", "0")
    for number in range(options.turns):
        # On, off, off, on: neither comes first more often.
        observe = number % 4 in (0, 3)
        if options.turns == 1:
            observe = os.environ.get("HERRING_OBSERVE", "true") == "true"
        found[observe].append(turn(options.steps, observe))
    if rank != "0":
        return
    medians = {}
    for observe, turns in found.items():
        if not turns:
            continue
        step, processor = (statistics.median(values) for values in zip(*turns, strict=True))
        medians[observe] = (step, processor)
        print(
            f"observe={str(observe).lower()}: a step takes {step * 1e3:.3f} ms, and all ranks "
            f"{processor * 1e3:.3f} ms of processors (medians of {len(turns)} jobs)"
        )
    if len(medians) == 2:
        times, processors = (on / off for on, off in zip(medians[True], medians[False]))
        print(f"observed / not observed: time {times:.3f}, processors {processors:.3f}")


if __name__ == "__main__":
    main()
