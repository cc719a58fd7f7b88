"""Records a training run with partial rounds, and replays it with different delays."""

import os
from pathlib import Path

import numpy as np

import herring
from herring.partial import Quorum
from replay_training import train

herring.init()
rank = herring.rank()

path = os.environ["RECORDING"]
cases = [
    (300, "solo"),
    (40_000, "majority"),
    (40_000, Quorum(1, staleness=2)),
    (300, Quorum(2, grace=0.001, staleness=3, divisor="contributors")),
]
then = herring.RoundStatistics()
recorded = [train(elements, sync, 1, then) for elements, sync in cases]
then.save(path)
late = sum(stale > 0 for one in recorded for these in one[2] for _, _, stale, _ in these)
assert late > 10, late
for seed in (2, 3):
    now = herring.RoundStatistics()
    sync = herring.Replay(path)
    for (elements, _), (weights, digest, lists, steps) in zip(cases, recorded):
        found = train(elements, sync, seed, now)
        assert found[3] == steps
        assert found[2] == lists
        assert found[1] == digest
        assert (found[0].view(np.uint32) == weights.view(np.uint32)).all()
    again = path + ".again"
    now.save(again)
    if rank == 0:
        assert Path(again).read_text() == Path(path).read_text()
