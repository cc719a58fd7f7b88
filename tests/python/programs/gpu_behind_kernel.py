"""Makes calls behind a kernel; all ranks refuse them before it ends, and the job goes on."""

import gc
import weakref

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, driver, rank, size
from support import raises, tell, told

array = GpuArray(np.full(100_000, 1.0, np.float32), tells=rank != 2)
herring.allreduce(array, "sum", name="warm")
herring.barrier()
if rank == 0:
    gate = Gate()
    gate.hold(array)
    array.fill(1)
    try:
        herring.allreduce(array, "sum", name="x", timeout=2)
    except herring.TimeoutError as error:
        assert "'x': GPU 0 has not reached the call after" in str(error), error
        assert "a kernel queued before the call has not finished" in str(error), error
        del error
    raises(
        herring.TimeoutError,
        "'list': GPU 0 has not reached the call after",
        herring.grouped_allreduce,
        [array],
        name="list",
        timeout=0.1,
    )
    # A queued copy will still read the array, so Herring keeps it.
    kept, address = weakref.ref(array), array.address
    array = None
    gc.collect()
    assert kept() is not None and kept().address == address
    array = GpuArray(np.full(100_000, 1.0, np.float32), device=1)
else:
    raises(
        herring.InvalidArgumentError,
        "allreduce 'x' was refused by rank 0 (",
        herring.allreduce,
        array,
        "sum",
        name="x",
    )
    raises(
        herring.InvalidArgumentError,
        "): GPU 0 has not reached the call after",
        herring.grouped_allreduce,
        [array],
        name="list",
    )
    array.fill(1)
tell(f"refused {rank}")
if rank == 0:
    told(*(f"refused {other}" for other in range(size)))
    gate.open()
for name in ("x", "list"):  # The next calls of these names use another GPU.
    herring.allreduce(array, "sum", name=name)
assert (array.get() == size * size).all()
if rank == 0:
    driver.synchronize(0)
dropped = False
while not dropped:  # Each call drops arrays that nothing reads any more.
    here = np.array([rank > 0 or kept() is None], np.int32)
    dropped = bool(herring.allreduce(here, "min")[0])
herring.shutdown()
