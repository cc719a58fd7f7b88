"""Compares the sums that ranks contributed and applied; random pauses make ranks late."""

import hashlib
import time

import numpy as np

import herring
from herring.partial import PartialReduction, Quorum

herring.init()
rank, size = herring.rank(), herring.size()
random = np.random.default_rng(100 + rank)
for elements, sync in [
    (512, "solo"),
    (512, "majority"),
    (200_000, "majority"),
    (200_000, Quorum(1, grace=0.001, staleness=2)),
    (3000, Quorum(size)),
]:
    series = PartialReduction(elements, "int64", sync=sync, op="sum")
    work = np.empty(elements, np.int64)
    produced, applied = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    digest, actives = hashlib.sha256(), []
    for step in range(12):
        if random.random() < 0.3:
            time.sleep(random.random() * 0.02)
        work[:] = random.integers(0, 1000, elements)
        produced += work
        info = series.allreduce(work)
        assert info.round == step and info.divisor == 1
        applied += work
        digest.update(work.tobytes())
        actives.append(info.active)
        assert all(one.staleness <= series.quorum.staleness for one in info.contributors)
    assert min(actives) >= series.quorum.q, actives
    work[:] = 1
    produced += work
    for info in series.flush(work):  # noqa: B007
        applied += work
        digest.update(work.tobytes())
    assert info.last and len(info.contributors) == size
    assert series.contributions == (13, 13)
    total = np.sum(herring.allgather(produced[None]), axis=0)
    assert (total == applied).all(), (sync, total[:4], applied[:4])
    digests = herring.allgather_object(digest.hexdigest())
    assert len(set(digests)) == 1, (sync, digests)
