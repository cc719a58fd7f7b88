"""Steps in which nobody is late: what partial all-reduces cost, and what overlap is worth.

Partial modes push whole updates, once all gradients are there, and give up the overlap with the
backward pass. On the lab's hosts, as links must take their time for that to be seen.
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

__all__ = ["no_delay"]

_PIECES = 16  # of a gradient that is sent while the rest is computed
_UNTIMED = 4  # first rounds, while credit grows
_MARGIN = 0.05


def no_delay(network: Network, hosts: int, seconds: float, steps: int) -> Table:
    """Steps in which nobody is delayed: what the modes cost, and what overlap is worth.

    Args:
      network: between the hosts.
      hosts: with a worker each; as many have servers.
      seconds: that a link takes for the array; a step computes four times as long.
      steps: timed ones.

    Raises:
      ClusterError: there can be no lab here, or the job failed.
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
            "model_rounds_per_second": 1 / (tail if "overlap" in row["mode"] else whole),
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
            "passed; all others begin when all is computed, which partial modes must",
            "contributors: those in a round's result; what came just too late is in the next",
        ],
    )


# -- what each worker runs ------------------------------------------------------------------------


def paces(elements: int, compute: float, steps: int) -> list[dict[str, Any]]:
    """One worker of `no_delay`."""
    import herring

    rows = []
    for mode in ("full", "full, overlapped", "solo", "majority"):
        step, close = _prepare(mode, elements, compute)
        # Counted from the first on all ranks: who has enough leaves none to wait for a round that
        # it takes part in no more.
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
    """A step, which returns the numbers of contributors of the rounds it has seen; and its end."""
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

    if mode == "full":
        return full, lambda: None
    if mode == "full, overlapped":
        parts = [(len(part), "float32") for part in np.array_split(array, _PIECES)]
        planned = PlannedReduction(parts, buffer_bytes=4 * elements // _PIECES)
        return overlapped, planned.close
    series = PartialReduction(elements, "float32", sync=mode)
    return partial, lambda: list(series.flush(array))
