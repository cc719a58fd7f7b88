"""Goes on with a series after calls that have timed out: no result and no contribution is lost."""

import numpy as np

import herring
from herring.partial import PartialReduction
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
everybody = herring.Quorum(size)


def call(value: float, timeout: float | None = None) -> float:
    array = np.full(3, value, np.float32)
    return float(herring.allreduce(array, "sum", sync=everybody, name="series", timeout=timeout)[0])


assert call(1) == size
if rank == 0:
    raises(herring.TimeoutError, "round 1", call, 10, timeout=0.1)
    raises(herring.TimeoutError, "round 1", call, 1000, timeout=0.1)  # has not contributed
herring.barrier()
if rank > 0:
    assert call(10) == 10 * size
assert call(100) == 100 * size
results = [float(result[0]) for result in herring.flush(np.zeros(3, np.float32), name="series")]
assert results == ([10.0 * size] if rank == 0 else []) + [0], results

series = PartialReduction(3, "float32", sync=everybody, op="sum")
result = np.empty(3, np.float32)


def step(value: float, timeout: float | None = None) -> list[float]:
    given = np.full(3, value, np.float32)
    return [float(result[0]) for _ in series.step(given, result, timeout)]


assert step(1) == [size]
if rank == 0:
    raises(herring.TimeoutError, "round 1", step, 10, timeout=0.1)
herring.barrier()
if rank > 0:
    assert step(10) == [10 * size]
# Rank 0 takes the missed result first, contributes, and waits for nothing more.
assert step(100) == [10 * size if rank == 0 else 100 * size]
last = np.zeros(3, np.float32)
results = [float(last[0]) for _ in series.flush(last)]
assert results == ([100.0 * size] if rank == 0 else []) + [0], results
