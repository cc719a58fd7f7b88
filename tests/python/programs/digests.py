"""Prints digests of float32 sums whose bits depend on the order of addition."""

import hashlib
import os

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
for count in (1000, 300_001):
    source = np.random.default_rng(rank).standard_normal(count).astype(np.float32)
    source *= 10.0 ** np.random.default_rng(rank + 50).integers(-6, 6, count)
    for op in ("sum", "average"):
        array = herring.empty(count)
        own = set()
        for _again in range(10):
            array[:] = source
            herring.allreduce(array, op)
            own.add(hashlib.sha256(array.tobytes()).hexdigest())
        digests = set().union(*herring.allgather_object(own))
        assert len(digests) == 1, digests
        if rank == 0:
            print("digest", op, count, *digests)
planned = herring.PlannedReduction(
    [(100_000, "float32")] * 3, buffer_bytes=int(os.environ.get("TEST_BUFFER_BYTES", "0"))
)
planned.begin()
planned.arena(0).view("float32")[:] = np.random.default_rng(rank).standard_normal(300_000)
for i in range(3):
    planned.ready(i)
planned.wait()
if rank == 0:
    print("digest planned", hashlib.sha256(planned.arena(0).tobytes()).hexdigest())
