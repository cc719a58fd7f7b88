"""Servers die during partial all-reduces: those that only sum, and the one that closes the rounds.

Rank 0 kills the servers that its arguments name, one after another, and each time waits until the
job's status shows that another process has taken the place. The first argument is that of a server
that dies before the first series, or "none". All ranks check that what was contributed is what was
applied, and that they have had the same results in the same rounds. Contributions to the small
series travel with the joins, those to the large one are pushed.
"""

import hashlib
import signal
import sys

import numpy as np

import herring
from herring.partial import PartialReduction
from serving import replace, run_while_killed

SIZES = {"large": 200_000, "small": 50}

herring.init()
rank, size = herring.rank(), herring.size()


class Series:
    """One series, with what this rank has contributed to it and has applied."""

    def __init__(self, name: str) -> None:
        elements = SIZES[name]
        self.name = name
        self.reduction = PartialReduction(elements, "int64", name=name, sync="majority", op="sum")
        self.produced, self.applied = np.zeros((2, elements), np.int64)
        self.result = np.empty(elements, np.int64)
        self.seen = hashlib.sha256()

    def add(self, infos: object) -> None:
        """Applies results."""
        for info in infos:
            self.applied += self.result * info.divisor
            self.seen.update(f"{info.round} {len(info.contributors)}".encode())
            self.seen.update(self.result.tobytes())

    def step(self, step: int) -> None:
        """Contributes, and applies what is there."""
        mine = (np.arange(len(self.result)) * (rank + 1) + step) % 1009
        self.produced += mine
        self.add(self.reduction.step(mine, self.result))

    def end(self) -> None:
        """Ends the series and compares it on all ranks."""
        mine = np.full(len(self.result), rank)
        self.produced += mine
        self.result[:] = mine
        self.add(self.reduction.flush(self.result))
        total = np.sum(herring.allgather(self.produced[None], name="all"), axis=0)
        assert (total == self.applied).all(), (self.name, total[:4], self.applied[:4])
        seen = np.frombuffer(self.seen.digest(), np.uint8)
        assert (herring.allgather(seen[None], name="seen") == seen).all(), self.name


def step(number: int) -> None:
    """Runs a series of each size from its beginning to its end."""
    for name in SIZES:
        series = Series(name)
        for place in range(20):
            series.step(place)
        series.end()


if rank == 0 and sys.argv[1] != "none":
    replace(int(sys.argv[1]), signal.SIGKILL)
steps = run_while_killed(step, [int(index) for index in sys.argv[2:]])
print(f"rank {rank} is done after {steps * len(SIZES)} series", flush=True)
