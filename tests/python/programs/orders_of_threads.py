"""Three threads of each rank submit operations, each in a different order."""

import random
import threading

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
failures = []


def run(thread):
    try:
        names = [f"{thread}.{i}" for i in range(60)]
        random.Random(rank * 10 + thread).shuffle(names)
        arrays = {n: np.full(70_000 if n.endswith("0") else 100, rank, np.int64) for n in names}
        handles = [herring.allreduce_async(arrays[n], "sum", name=n) for n in names]
        for handle in handles:
            handle.wait()
        assert all((a == size * (size - 1) // 2).all() for a in arrays.values())
        gathered = herring.allgather(np.full(rank + 1, thread), name=f"g{thread}")
        assert len(gathered) == size * (size + 1) // 2 and (gathered == thread).all()
    except Exception as error:
        failures.append(error)


threads = [threading.Thread(target=run, args=(t,)) for t in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not failures, failures
