"""Recomputes each result from the list of its contributors, and compares the bits.

A contribution depends on its rank and number only. Each rank's contributions are summed first,
then the sums are added in the order of ranks.
"""

import time

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum

herring.init()
rank, size = herring.rank(), herring.size()


def value(rank, number, elements):
    return np.random.default_rng([rank, number]).standard_normal(elements, np.float32)


def tree(parts):
    while len(parts) > 1:
        parts = [
            parts[i] + parts[i + 1] if i + 1 < len(parts) else parts[i]
            for i in range(0, len(parts), 2)
        ]
    return parts[0]


for elements, divisor in [(700, "workers"), (40_000, "contributors")]:
    series = PartialReduction(elements, "float32", sync=Quorum(2, staleness=3, divisor=divisor))
    counted = [0] * size
    for step in range(1, 25):
        time.sleep(0.001 * ((7 * step + 3 * rank) % 5))
        work = value(rank, step, elements)
        info = series.allreduce(work)
        parts = []
        for one in info.contributors:
            own = [value(one.rank, n, elements) for n in range(counted[one.rank] + 1, one.upto + 1)]
            total = own[0]
            for part in own[1:]:
                total = total + part
            parts.append(total)
            counted[one.rank] = one.upto
        expected = tree(parts) / np.float32(info.divisor)
        assert info.divisor == (size if divisor == "workers" else len(info.contributors))
        assert (expected.view(np.uint32) == work.view(np.uint32)).all(), step
    list(series.flush(work))
