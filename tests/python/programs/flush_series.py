"""A series of partial rounds in which each rank makes a different number of steps and flushes."""

from __future__ import annotations

import hashlib
import time

import numpy as np

import herring
from herring.partial import PartialReduction


def run(seed, elements, sync, op="sum", statistics=None):
    """Runs a series and returns a digest of the results, and the rounds with their contributors.

    Checks that the applied sum equals the contributions, and that all ranks saw the same results.
    """
    rank, size = herring.rank(), herring.size()
    common, random = np.random.default_rng(seed), np.random.default_rng([seed, rank])
    steps = int(common.integers(0, 16, size)[rank])
    pause = float(common.choice([0, 0.002, 0.012]))
    dtype = "int64" if op == "sum" else "float64"
    series = PartialReduction(elements, dtype, sync=sync, op=op, statistics=statistics)
    result = np.empty(elements, dtype)
    produced, applied = np.zeros(elements, dtype), np.zeros(elements, dtype)
    digest, seen = hashlib.sha256(), []

    def apply(info):
        applied[:] += result * info.divisor
        digest.update(result.tobytes())
        seen.append((info.round, info.last, [(one.rank, one.upto) for one in info.contributors]))
        if random.random() < 0.2:
            time.sleep(random.random() * pause)

    eager = seed % 3 > 0
    for _step in range(steps):
        if random.random() < 0.5:
            time.sleep(random.random() * pause)
        mine = random.integers(0, 1000, elements).astype(dtype)
        produced += mine
        if eager:
            for info in series.step(mine, result):
                apply(info)
        else:
            result[:] = mine
            apply(series.allreduce(result))
    result[:] = rank
    produced += result
    for info in series.flush(result):
        apply(info)
    assert series.contributions == (steps + 1, steps + 1)
    assert [number for number, _, _ in seen] == list(range(len(seen)))
    assert [last for _, last, _ in seen] == [False] * (len(seen) - 1) + [True]
    assert [uptos for _, _, uptos in seen][-1], "nobody was in the last round"
    total = np.sum(herring.allgather(produced[None]), axis=0)
    assert (total == applied).all(), (seed, sync, total[:4], applied[:4])
    everyone = herring.allgather_object((digest.hexdigest(), seen))
    assert all(one == everyone[0] for one in everyone), (seed, sync, everyone)
    assert series.memory <= 2 * (series.quorum.staleness + 3), series.memory
    return digest.hexdigest(), seen
