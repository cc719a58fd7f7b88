"""Makes calls that fail or are refused; their arrays must not change."""

import time

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank, size
from support import raises, tell, told

array = GpuArray(np.full(500_000, 7, np.float32))


def untouched():
    time.sleep(0.05)  # If something still writes, it may show by then.
    return (array.get() == 7).all()


warm = GpuArray(np.ones(10, np.float32))
herring.allreduce(warm, algorithm="cuda-butterfly", prescale=0.5)
for scale in (1.0, 0.5):
    options = {"prescale": scale, "algorithm": "cuda-butterfly"}
    # Rank 1 calls too late.
    if rank == 0:
        raises(
            herring.TimeoutError,
            "rank 1",
            herring.allreduce,
            array,
            name="late",
            timeout=0.5,
            **options,
        )
        tell(f"late {scale}")
    else:
        told(f"late {scale}")
        raises(herring.TimeoutError, "'late'", herring.allreduce, array, name="late", **options)
    assert untouched()
    # One rank refuses a call, then all do.
    driver.capture(array.stream, rank == 1)
    text = "is being captured for a CUDA graph" if rank == 1 else "was refused by rank 1"
    raises(herring.InvalidArgumentError, text, herring.allreduce, array, name="c", **options)
    driver.capture(array.stream, False)
    assert untouched()
    raises(
        herring.MismatchError,
        "op max",
        herring.allreduce,
        array,
        "max" if rank else "sum",
        name="m",
        **options,
    )
    assert untouched()
herring.allreduce(array, "sum", algorithm="cuda-butterfly")
assert (array.get() == 7 * size).all()
driver.synchronize(0)
herring.shutdown()
