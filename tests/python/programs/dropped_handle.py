"""Drops a handle and its array while the operation is in flight."""

import gc
import weakref

import numpy as np

import herring
from support import tell, told

herring.init()


class Array(np.ndarray):
    pass


array = np.ones(1_000_000, np.float32).view(Array)
alive = weakref.ref(array)
if herring.rank() == 0:
    try:
        handle = herring.allreduce_async(array, "sum", name="dropped")
        raise RuntimeError("while it is in flight")
    except RuntimeError:
        del handle, array
    gc.collect()
    assert alive() is not None, "the engine would write into freed memory"
    tell("dropped")
else:
    told("dropped")
    herring.allreduce(array, "sum", name="dropped")
    assert (array == 2).all()
herring.barrier()
herring.allreduce(np.zeros(1))
if herring.rank() == 0:
    while alive() is not None:  # released when the next operation is submitted
        herring.allreduce_async(np.zeros(1), name="alone")
        break
    assert alive() is None
