"""What `herring check` runs on each rank: one all-reduce whose result is known."""

from __future__ import annotations

import sys

import numpy as np

import herring

ELEMENTS = 100_000


def main() -> int:
    """Averages ranks plus a ramp; 0 if the result is right to the bit."""
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
