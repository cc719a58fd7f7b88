"""Measures the cost of partial all-reduces and the gain of overlap if no worker is late.

Partial modes push whole updates once all gradients are ready, and so do not overlap with the
backward pass. By buffer they do. Hosts of the lab show this, because their links take time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from herring_lab.report import Table
from herring_lab.study.bench import Network
from herring_lab.study.hyperplane import SLEPT
from herring_lab.study.jobs import run_in_lab, sleep_until, start_together

_PIECES = 16  # number of pieces of a gradient that is sent while the rest is computed
#: The modes in which the steps are made; those with a comma send while they compute.
MODES = (
    *("full", "full, overlapped"),
    *("solo", "solo, by buffer", "majority", "majority, by buffer"),
)
_UNTIMED = 4  # rounds before those that are timed, while credit grows
_MARGIN = 0.05


def no_delay(network: Network, hosts: int, seconds: float, steps: int) -> Table:
    """Measures all modes, and overlap, in steps in which no worker is delayed.

    Args:
      network: the network between the hosts.
      hosts: the number of hosts with a worker each; as many hosts have a server each.
      seconds: the time that a link takes for the array; a step computes four times as long.
      steps: timed steps.

    Raises:
      ClusterError: this machine cannot make a lab, or the job failed.
    """
    elements = int(network.bandwidth * seconds / 4)
    compute = 4 * seconds
    found = run_in_lab(
        network,
        "herring_lab.study.overlap:paces",
        hosts,
        hosts,
        elements=elements,
        compute=compute,
        steps=steps,
    )
    full = found[0]["rounds_per_second"]
    whole, tail = compute + seconds, compute + seconds / _PIECES
    rows = [
        {
            "mode": row["mode"],
            "rounds_per_second": row["rounds_per_second"],
            "model_rounds_per_second": 1 / (tail if "," in row["mode"] else whole),
            "of_full_percent": 100 * row["rounds_per_second"] / full,
            "mean_contributors": row["contributors"],
        }
        for row in found
    ]
    return Table(
        "partial-no-delay",
        f"Nobody delayed: {hosts} workers and as many servers, {elements * 4 / 1e6:g} MB, "
        f"{network.rate_bits / 1e6:g} Mbit/s, {compute:g} s of computing in a step",
        rows,
        None,
        [
            SLEPT,
            f"emulated hosts; the slowest worker's rounds over {steps} steps",
            f"overlap: {_PIECES} parts of the gradient, each sent when its part of the time has "
            "passed; by buffer: the same, and each part has rounds of its own; all others begin "
            "when all gradients are computed, as whole updates must",
            "contributors: workers in a round's result, by buffer of the first part; gradients "
            "that are late are in the next",
        ],
    )


# -- what each worker runs ------------------------------------------------------------------------


def paces(elements: int, compute: float, steps: int) -> list[dict[str, Any]]:
    """Runs one worker of `no_delay`."""
    import herring

    rows = []
    for mode in MODES:
        step, close = _prepare(mode, elements, compute)
        # All ranks count rounds from the first one. So a rank that stops leaves no other rank
        # waiting for a round in which it no longer takes part.
        contributors: list[int] = []
        while len(contributors) < _UNTIMED:
            contributors += step()
        untimed = len(contributors)
        start = start_together(_MARGIN)
        sleep_until(start)
        while len(contributors) < _UNTIMED + steps:
            contributors += step()
        pace = (len(contributors) - untimed) / (time.monotonic() - start)
        close()
        rows.append(
            {
                "mode": mode,
                "rounds_per_second": min(herring.allgather_object(pace)),
                "contributors": float(np.mean(contributors[untimed:])),
            }
        )
    return rows


def _prepare(
    mode: str, elements: int, compute: float
) -> tuple[Callable[[], list[int]], Callable[[], Any]]:
    """Returns a step, which returns the contributors of its rounds, and a function to end it."""
    import herring
    from herring.partial import PartialReduction
    from herring.planned import PlannedReduction

    array, result = np.ones(elements, np.float32), np.empty(elements, np.float32)
    everybody = [herring.size()]

    def full() -> list[int]:
        time.sleep(compute)
        herring.allreduce(array)
        return everybody

    def overlapped() -> list[int]:
        start = time.monotonic()
        planned.begin()
        for index in range(_PIECES):
            sleep_until(start + compute * (index + 1) / _PIECES)
            planned.ready(index)
        planned.wait()
        return everybody

    def partial() -> list[int]:
        time.sleep(compute)
        return [len(info.contributors) for info in series.step(array, result)]

    def by_buffer() -> list[int]:
        start = time.monotonic()
        missed = []
        for index, (part, one) in enumerate(zip(np.array_split(array, _PIECES), buffers)):
            sleep_until(start + compute * (index + 1) / _PIECES)
            missed.append(one.ready > 0)
            one.contribute(part, waits=not missed[-1])
        counts = []
        for index, one in enumerate(buffers):
            while one.owes or (missed[index] and one.ready):
                info = one.take(np.array_split(result, _PIECES)[index])
                if index == 0:
                    counts.append(len(info.contributors))
        return counts

    def end_buffers() -> None:
        parts = np.array_split(array, _PIECES)
        for part, one in zip(parts, buffers):
            one.begin_flush(part)
        # In turn, because no rank gets far ahead of one that does not take results.
        while left := [(part, one) for part, one in zip(parts, buffers) if not one.ended]:
            for part, one in left:
                next(one.flush(part))

    if mode == "full":
        return full, lambda: None
    if mode == "full, overlapped":
        parts = [(len(part), "float32") for part in np.array_split(array, _PIECES)]
        planned = PlannedReduction(parts, buffer_bytes=4 * elements // _PIECES)
        return overlapped, planned.close
    sync, _, how = mode.partition(", ")
    if how:
        sizes = [len(part) for part in np.array_split(array, _PIECES)]
        buffers = [PartialReduction(size, "float32", sync=sync) for size in sizes]
        return by_buffer, end_buffers
    series = PartialReduction(elements, "float32", sync=sync)
    return partial, lambda: list(series.flush(array))
