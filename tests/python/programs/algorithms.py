"""Compares every algorithm with NumPy and checks that all ranks get the same bits."""

import hashlib

import numpy as np

import herring
from reductions import check_reductions

herring.init()
rank = herring.rank()
for algorithm in ("server", "tree", "ring", "butterfly", "doubling"):
    # Counts cover fewer elements than ranks, odd tails, and blocks of several frames.
    check_reductions((0, 1, 3, 1009, 300_007), algorithm=algorithm)
    # The result has the same bits on every rank and in a second run.
    digests = []
    for _attempt in range(2):
        array = np.random.default_rng(rank).standard_normal(200_003).astype(np.float32)
        array *= 10.0 ** np.random.default_rng(rank + 50).integers(-6, 6, len(array))
        herring.allreduce(array, algorithm=algorithm)
        digests += herring.allgather_object(hashlib.sha256(array.tobytes()).hexdigest())
    assert len(set(digests)) == 1, (algorithm, digests)
