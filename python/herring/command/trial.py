"""The program that `herring check` runs on each rank: an all-reduce with a known result."""

from __future__ import annotations

import sys

import numpy as np

import herring

ELEMENTS = 100_000


def main() -> int:
    """Averages the ranks plus a ramp; returns 0 if every bit of the result is right."""
    herring.init()
    ramp = np.arange(ELEMENTS, dtype=np.float32) % 1024
    array = ramp + np.float32(herring.rank())
    herring.allreduce(array, name="trial")
    expected = ramp + np.float32((herring.size() - 1) / 2)
    wrong = int(np.count_nonzero(array != expected))
    rank = herring.rank()
    herring.shutdown()
    if wrong:
        print(f"rank {rank}: {wrong} of {ELEMENTS} elements are wrong", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
