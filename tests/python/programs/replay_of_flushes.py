"""Records and replays two epochs, in which different ranks flush first."""

import os
import time

import numpy as np

import herring

herring.init()
rank, path = herring.rank(), os.environ["RECORDING"]


def run(sync, name, pause):
    results = []
    for step in range(4 + rank):
        time.sleep(pause * ((step + rank) % 3))
        array = np.full(50, 1.5 * step + rank, np.float32)
        results.append(herring.allreduce(array, sync=sync, name=name))
    return results + herring.flush(np.zeros(50, np.float32), name=name)


# Different ranks are late in the two epochs.
recorded = run("solo", "a", 0.004)
epoch = len(recorded)
rank = herring.size() - 1 - rank
recorded += run("solo", "a", 0.004)
herring.partial_statistics("a").save(path)
rank = herring.rank()
replayed = run(herring.Replay(path), "b", 0.0)
assert len(replayed) == epoch
rank = herring.size() - 1 - rank
replayed += run(herring.Replay(path), "b", 0.0)
assert len(recorded) == len(replayed)
assert all((a.view(np.uint32) == b.view(np.uint32)).all() for a, b in zip(recorded, replayed))
