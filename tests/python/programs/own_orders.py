"""Every rank submits forty operations, small and large, in a different order.

A planned operation runs at the same time.
"""

import random

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
planned = herring.PlannedReduction([(70_001, "float32"), (3, "float64"), (200_000, "float32")])
for attempt in range(3):
    names = [f"{attempt}.{i}" for i in range(40)]
    random.Random(rank + 100 * attempt).shuffle(names)
    planned.begin()
    for i, (arena, offset, length) in enumerate(planned.placements):
        dtype = planned.arenas[arena][0]
        planned.arena(arena)[offset : offset + length].view(dtype)[:] = rank + i + attempt
    handles = []
    gradients = [0, 1, 2]
    random.Random(rank).shuffle(gradients)
    for position, name in enumerate(names):
        if position % 13 == 5:
            planned.ready(gradients[position // 13])
        array = np.full(50_000 if int(name.split(".")[1]) % 2 else 5, rank, np.int64)
        handles.append(herring.allreduce_async(array, "sum", name=name))
    random.Random(rank + 7).shuffle(handles)
    for handle in handles:
        assert (handle.wait(600) == size * (size - 1) // 2).all()
    planned.wait(600)
    for i, (arena, offset, length) in enumerate(planned.placements):
        values = planned.arena(arena)[offset : offset + length].view(planned.arenas[arena][0])
        assert (values == (size - 1) / 2 + i + attempt).all(), (i, values[:3])
    assert planned.contributors == size
# A worker without data takes part in the round but does not count in the average.
active = rank != size - 1 or size == 1
planned.begin(active)
if active:
    for arena, (dtype, _) in enumerate(planned.arenas):
        planned.arena(arena).view(dtype)[:] = 6.0
    for i in range(3):
        planned.ready(i)
planned.wait(600)
for arena, (dtype, _) in enumerate(planned.arenas):
    assert (planned.arena(arena).view(dtype) == 6.0).all()
assert planned.contributors == max(1, size - 1)
