"""Servers die during partial all-reduces: those that only sum, and the one that closes the rounds.

Rank 0 kills the servers that its arguments name, one after another, and each time waits until the
job's status shows that another process has taken the place. The first argument is that of a server
that dies before the first series, or "none". All ranks check that what was contributed is what was
applied, and that they have had the same results in the same rounds. Contributions to the small
series travel with the joins, those to the large one are pushed. Some series belong to a group, and
some are recorded in the folder FOLDER and replayed.
"""

import hashlib
import os
import signal
import sys

import numpy as np

import herring
from herring.partial import PartialReduction
from serving import replace, run_while_killed

SIZES = {"large": 200_000, "small": 50}

herring.init()
rank, size = herring.rank(), herring.size()
some = herring.new_group(range(1, size))


class Series:
    """One series, with what this rank has contributed to it and has applied."""

    def __init__(self, name: str, sync: object, group: herring.Group | None) -> None:
        elements = SIZES[name]
        self.name, self.group = name, group
        self.reduction = PartialReduction(
            elements, "int64", name=name, sync=sync, op="sum", group=group
        )
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
        all_produced = herring.allgather(self.produced[None], name="all", group=self.group)
        total = np.sum(all_produced, axis=0)
        assert (total == self.applied).all(), (self.name, total[:4], self.applied[:4])
        seen = np.frombuffer(self.seen.digest(), np.uint8)
        all_seen = herring.allgather(seen[None], name="seen", group=self.group)
        assert (all_seen == seen).all(), self.name


def run(name: str, sync: object = "majority", group: herring.Group | None = None) -> Series:
    """Runs a series from its beginning to its end."""
    series = Series(name, sync, group)
    for place in range(20):
        series.step(place)
    series.end()
    return series


def step(number: int) -> None:
    """Runs series of each size: of all ranks, in turn alone, beside a group's, and replayed."""
    for name in SIZES:
        series = run(name)
        if number % 3 == 1 and rank > 0:
            run(name, group=some)
        if number % 3 == 2:
            path = os.path.join(os.environ["FOLDER"], f"{name}.json")
            series.reduction.statistics.save(path)
            again = run(name, herring.Replay(path))
            assert again.seen.digest() == series.seen.digest(), (number, name)


if rank == 0 and sys.argv[1] != "none":
    replace(int(sys.argv[1]), signal.SIGKILL)
steps = run_while_killed(step, [int(index) for index in sys.argv[2:]])
print(f"rank {rank} is done after {steps} steps", flush=True)
