"""Compares what ranks gave and took in rounds between workers; random pauses make ranks late."""

import hashlib
import os
import time

import numpy as np

import herring
from herring.partial import PartialReduction

herring.init()
rank, size = herring.rank(), herring.size()
random = np.random.default_rng(100 + rank)
mine = herring.new_group([r for r in range(size) if r % 2 == rank % 2], name=f"{rank % 2}")
algorithms = ["doubling", "butterfly", "ring", "tree", "server"]
chosen = int(os.environ.get("CHOICE", "0"))
for number, (elements, sync, group) in enumerate(
    [
        (1, "solo", None),
        (512, "majority", None),
        (200_001, "solo", mine),
        (200_001, "majority", None),
        (3000, "majority", mine),
    ]
):
    algorithm = algorithms[(number + chosen) % len(algorithms)]
    members = group.ranks if group else range(size)
    series = PartialReduction(
        elements, "int64", sync=sync, op="sum", group=group, algorithm=algorithm
    )
    work, result = np.empty(elements, np.int64), np.empty(elements, np.int64)
    produced, applied = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    digest, rounds = hashlib.sha256(), []

    def apply(info, rounds=rounds, most=series.quorum.staleness):
        assert info.round == len(rounds) and info.divisor == 1, info
        rounds.append([(one.rank, one.upto, one.staleness) for one in info.contributors])
        assert all(one.staleness <= most for one in info.contributors), rounds

    steps = 10 + rank % 3  # ranks flush at different times
    for _ in range(steps):
        if random.random() < 0.3:
            time.sleep(random.random() * 0.02)
        work[:] = random.integers(0, 1000, elements)
        produced += work
        for info in series.step(work, result):
            apply(info)
            applied += result
            digest.update(result.tobytes())
    work[:] = rank
    produced += work
    for info in series.flush(work):
        apply(info)
        applied += work
        digest.update(work.tobytes())
    assert info.last and series.ended
    assert series.contributions == (steps + 1, steps + 1)
    total = herring.allreduce(produced.copy(), "sum", group=group)
    assert (total == applied).all(), (algorithm, sync, total[:4], applied[:4])
    said = herring.allgather_object((digest.hexdigest(), rounds), group=group)
    assert all(one == said[0] for one in said), (algorithm, sync, said)
    newest = {}
    for contributors in rounds:
        for one, upto, _ in contributors:
            assert upto > newest.get(one, 0), rounds
            newest[one] = upto
    assert sorted(newest) == list(range(len(members))), rounds

# The same contributors give the same bits as an ordinary all-reduce of what they gave.
for algorithm in algorithms:
    series = PartialReduction(5000, "float32", sync="solo", op="average", algorithm=algorithm)
    given = np.random.default_rng(rank).standard_normal((9, 5000)).astype(np.float32)
    work, results = np.empty(5000, np.float32), []
    for step in range(8):
        time.sleep(random.random() * 0.003)
        for info in series.step(given[step], work):
            results.append((info, work.copy()))
    work[:] = given[8]
    results += [(info, work.copy()) for info in series.flush(work)]
    counted = 0
    for info, result in results:
        again = np.zeros(5000, np.float32)
        for one in info.contributors:
            if one.rank == rank:
                again[:] = given[counted]
                for number in range(counted + 1, one.upto):
                    again += given[number]
                counted = one.upto
        herring.allreduce(again, algorithm=algorithm)
        assert (again.view(np.uint32) == result.view(np.uint32)).all(), (algorithm, info)
    assert counted == 9
print("right", flush=True)
