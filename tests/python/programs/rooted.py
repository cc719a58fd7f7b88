"""Tests collectives with a root: without elements, with late calls, and from threads.

The threads of each rank call in a different order.
"""

import threading

import numpy as np

import herring
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
found = herring.gather(np.empty((0, 3), np.float32), size - 1)
assert found.shape == (0, 3) if rank == size - 1 else found is None
found = herring.reduce(np.empty((0, 2), np.float32), "sum")
assert found.shape == (0, 2) if rank == 0 else found is None
everything = [2] + [0] * (size - 1)
part = herring.scatter(np.arange(2), 0, everything) if rank == 0 else herring.scatter("not read")
assert len(part) == (2 if rank == 0 else 0)
read_only = np.frombuffer(b"12345678" * size, np.uint8)
assert bytes(herring.scatter(read_only if rank == 0 else None)) == b"12345678"
if size > 1:
    if rank != 0:
        raises(herring.TimeoutError, "rank 0", herring.gather, np.ones(3), name="late", timeout=0.5)
    herring.barrier()
    if rank == 0:
        late = herring.gather, np.ones(3)
        raises(herring.TimeoutError, "which did not call it", *late, name="late")
found = herring.gather(np.full(2 + rank, rank), name="late")
assert rank > 0 or len(found) == sum(2 + r for r in range(size))
right = {}


def call(k):
    root = k % size
    total = herring.reduce(np.full(40_000, float(rank + k)), "sum", root, name=f"reduce {k}")
    whole = np.arange(5 * size) + k
    part = herring.scatter(whole if rank == root else None, root, name=f"scatter {k}")
    right[k] = np.array_equal(part, whole[5 * rank : 5 * rank + 5]) and (
        (total == sum(range(size)) + size * k).all() if rank == root else total is None
    )


threads = [
    threading.Thread(target=call, args=(int(k),))
    for k in np.random.default_rng(rank).permutation(12)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(600)
assert len(right) == 12 and all(right.values()), right
