"""Trains in steps and checks every result; runs on every rank while strangers attack.

Rank 0 writes the time of each step, in nanoseconds, to the file `steps`. Training ends when the
file `stop` is there.

Usage: python training.py FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import herring

FOLDER = Path(sys.argv[1])
ELEMENTS = 500_000

herring.init()
rank, size = herring.rank(), herring.size()
weights = herring.empty(ELEMENTS)
through_servers = sum(range(size))
with open(FOLDER / "steps", "ab", buffering=0) as times:
    for step in range(1_000_000):
        weights[:] = rank + step % 7
        herring.allreduce(weights, "sum", name="weights")
        assert (weights == through_servers + size * (step % 7)).all(), f"step {step} is wrong"
        if step % 10 == 0:  # between workers, without servers
            weights[:] = rank
            herring.allreduce(weights, "sum", name="mesh", algorithm="ring")
            assert (weights == through_servers).all(), f"step {step} is wrong"
            told = herring.broadcast_object((FOLDER / "stop").exists(), name="stop")
            if told:
                break
        if rank == 0:
            times.write(time.monotonic_ns().to_bytes(8, "little"))
if rank == 0:
    (FOLDER / "done").write_text(str(step))
