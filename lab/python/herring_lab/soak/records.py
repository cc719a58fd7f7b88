"""What the ranks of a soak write, step by step, and how two jobs are compared."""

from __future__ import annotations

import bisect
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

STOP = "stop"  # the file that asks rank 0 to end the training
DONE = "done"  # the last line of a rank
PARAMETERS_EVERY = 50  # steps from one hash of the parameters to the next
_TAIL = 400  # bytes of a file, in which its last line lies


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps of one rank.

    Attributes:
        ends: When each step ended (`time.monotonic`).
        bits: The checksums of each step.
        done: Whether the rank has come to the end of the training.
    """

    ends: list[float]
    bits: list[tuple[str, ...]]
    done: bool

    def end_after(self, at: float) -> float | None:
        """Returns when the step ended that was in flight at `at`; None if it did not end."""
        index = bisect.bisect_right(self.ends, at)
        return self.ends[index] if index < len(self.ends) else None


def steps_file(folder: Path, rank: int) -> Path:
    """Returns the file of a rank."""
    return folder / f"rank-{rank}.steps"


def worker_file(folder: Path, slot: int, process: str) -> Path:
    """Returns the file of a process that is a worker of an elastic job, by its `proc.identity`."""
    return folder / f"worker-{slot}-{process}"


def last_words(path: Path) -> list[str]:
    """Returns the words of a file's last whole line; empty if it has none, or is not there."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    return lines[-1].decode("ascii").split() if lines else []


def read(folder: Path, rank: int) -> Steps:
    """Reads the file of a rank; a last line without an end is left out.

    Raises:
        ValueError: A step is missing between two others.
    """
    ends: list[float] = []
    bits: list[tuple[str, ...]] = []
    path = steps_file(folder, rank)
    text = path.read_text(encoding="ascii") if path.is_file() else ""
    for line in text.rpartition("\n")[0].splitlines()[1:]:
        if line == DONE:
            return Steps(ends, bits, True)
        step, end, *rest = line.split()
        if int(step) != len(ends):
            raise ValueError(f"rank {rank}: step {step} came after {len(ends)} steps")
        ends.append(float(end))
        bits.append(tuple(rest))
    return Steps(ends, bits, False)


def difference(ranks: Sequence[Steps]) -> str:
    """Says what differs between ranks of one job, or of two; "" if nothing does."""
    counts = [len(steps.bits) for steps in ranks]
    for step, bits in enumerate(zip(*(steps.bits for steps in ranks), strict=False)):
        if len(set(bits)) > 1:
            return f"bits differ from step {step} on: {', '.join(one[0] for one in bits)}"
    if len(set(counts)) > 1:
        return f"steps were lost: ranks have {', '.join(map(str, counts))} steps"
    return ""
