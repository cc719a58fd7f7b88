"""Runs many operations of every algorithm at a time, beside operations through servers.

Each rank submits the operations in a different order.
"""

import random

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
algorithms = ("herring", "server", "tree", "ring", "butterfly", "doubling")
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(30)]
    random.Random(rank + 100 * attempt).shuffle(names)
    handles = []
    for name in names:
        number = int(name.split(".")[1])
        array = np.full((5, 3_000, 400_000)[number % 3], rank, np.int64)
        handles.append(
            herring.allreduce_async(array, "sum", name=name, algorithm=algorithms[number % 5])
        )
    random.Random(rank + 7).shuffle(handles)
    for handle in handles:
        assert (handle.wait(600) == size * (size - 1) // 2).all()
counters = herring.stats()["workers"]
assert counters["bytes_sent"] > 0 and counters["bytes_received"] > 0
