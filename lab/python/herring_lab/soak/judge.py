"""What a soak found: figures of both jobs, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from herring.base.units import counted
from herring_lab.soak.faults import Fault
from herring_lab.soak.job import Sample
from herring_lab.soak.records import Steps, difference

_ENOUGH = 12  # samples of a process, without which its growth is not known
_DESCRIPTORS = 4  # that may come and go
_PER_FAULT = 0.25  # descriptors and threads; a leak would be one or more


@dataclasses.dataclass(frozen=True)
class Growth:
    """How much more a process used at the end than at the beginning.

    Attributes:
        who: ``rank 0``, ``server 1`` or ``launcher``.
        what: ``memory``, ``descriptors`` or ``threads``.
        first: The median of the first third of its samples.
        last: The median of the last third.
        faults: Faults from the middle of the first third to that of the last third.
    """

    who: str
    what: str
    first: float
    last: float
    faults: int

    def exceeds(self, memory: int) -> bool:
        """Returns whether this is more than noise; `memory` bytes may come."""
        limit = memory if self.what == "memory" else max(_DESCRIPTORS, _PER_FAULT * self.faults)
        return self.last - self.first > limit

    def __str__(self) -> str:
        if self.what != "memory":
            return f"{self.who}: {self.what} {self.first:.0f} to {self.last:.0f}"
        return f"{self.who}: memory {self.first / 1e6:.1f} to {self.last / 1e6:.1f} MB"


def growth(samples: Iterable[Sample]) -> list[Growth]:
    """Returns the growth of each process that lived long enough.

    If there are enough samples that were taken while all servers served, only these count. The
    first fifth is left out, in which caches fill.
    """
    by_process: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples:
        by_process.setdefault((sample.who, sample.pid), []).append(sample)
    found = []
    for (who, _), every in by_process.items():
        calm = [sample for sample in every if sample.calm]
        own = calm if len(calm) >= _ENOUGH else every
        settled = own[len(own) // 5 :]
        third = len(settled) // 3
        if len(own) < _ENOUGH:
            continue
        first, last = settled[:third], settled[-third:]
        faults = last[third // 2].faults - first[third // 2].faults
        for what in ("memory", "descriptors", "threads"):
            begin, end = (
                statistics.median(getattr(one, what) for one in part) for part in (first, last)
            )
            found.append(Growth(who, what, begin, end, faults))
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclasses.dataclass
class Outcome:
    """Two jobs of as many steps, of which the first had faults.

    Attributes:
        seed: Of the faults.
        faults: What was done to the servers of the first job.
        steps: The steps of each rank of the first job.
        twin: The steps of each rank of the job without faults; empty if it did not run.
        samples: What the processes of the first job used.
        memory: Bytes that a process may use more at the end.
        left: Files and processes that were left after the jobs.
        failure: Why a job ended early; "" if none did.
    """

    seed: int
    faults: list[Fault]
    steps: list[Steps]
    twin: list[Steps]
    samples: list[Sample]
    memory: int
    left: list[str] = dataclasses.field(default_factory=list)
    failure: str = ""

    @property
    def count(self) -> int:
        """The number of steps that all ranks ended."""
        return min((len(one.ends) for one in self.steps), default=0)

    def recoveries(self) -> list[float]:
        """Returns for each fault the time from the signal to the end of the step in flight."""
        found = []
        for fault in self.faults:
            ends = [steps.end_after(fault.at) for steps in self.steps]
            if ends and None not in ends:
                found.append(max(end for end in ends if end is not None) - fault.at)
        return found

    def survived(self) -> int:
        """Returns the number of faults after which a step ended and another server served."""
        after = (steps.ends[-1] if steps.ends else 0.0 for steps in self.steps)
        last = min(after, default=0.0)
        return sum(f.replaced is not None and f.at < last for f in self.faults)

    def rates(self) -> tuple[float, float]:
        """Returns steps per second with and without faults, counted from the first step's end."""
        return _rate(self.steps), _rate(self.twin)

    def problems(self) -> list[str]:
        """Says what is wrong; empty if nothing is."""
        if self.failure:
            return [self.failure]
        found = []
        if not self.faults:
            found.append("there was no fault: more --minutes, or a smaller --kill-every")
        if missing := len(self.faults) - self.survived():
            found.append(f"{counted(missing, 'fault')} not survived")
        if text := difference(self.steps):
            found.append(f"between ranks of the job with faults, {text}")
        elif text := difference([*self.steps, *self.twin]):
            found.append(f"between the job with faults (first) and its twin, {text}")
        unfinished = [r for r, one in enumerate(self.steps) if not one.done]
        found += [f"rank {rank} did not come to its end" for rank in unfinished]
        found += [f"grew: {one}" for one in growth(self.samples) if one.exceeds(self.memory)]
        return found + [f"left behind: {one}" for one in self.left]

    def figures(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        times = self.recoveries()
        faulty, calm = self.rates()
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {
            "seed": self.seed,
            "steps": self.count,
            "faults": len(self.faults),
            "survived": self.survived(),
            "kinds": {k: sum(f.what == k for f in self.faults) for k in ("kill", "stop")},
            "recovery_seconds": {
                n: percentile(times, s) if times else None for n, s in shares.items()
            },
            "replaced_seconds": {
                n: percentile(waits, s) if (waits := self._waits()) else None
                for n, s in shares.items()
            },
            "steps_per_second": {"with_faults": faulty, "without": calm},
            "throughput_kept": faulty / calm if calm else None,
            "growth": [dataclasses.asdict(one) for one in growth(self.samples)],
            "left": self.left,
            "problems": self.problems(),
        }

    def _waits(self) -> list[float]:
        return [f.replaced - f.at for f in self.faults if f.replaced is not None]


def _rate(ranks: Sequence[Steps]) -> float:
    if not ranks or len(ranks[0].ends) < 2:
        return 0.0
    ends = ranks[0].ends
    return (len(ends) - 1) / (ends[-1] - ends[0])
