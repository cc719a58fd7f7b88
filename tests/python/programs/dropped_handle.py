"""Drops a handle and its array while the operation is in flight."""

import gc
import itertools
import weakref

import numpy as np

import herring
from support import tell, told, until

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
    # It is released when an operation is submitted after the engine has let go of it.
    numbers = itertools.count()

    def is_released():
        herring.allreduce_async(np.zeros(1), name=f"alone {next(numbers)}")
        return alive() is None

    until(is_released)
    tell("released")
else:
    told("released")  # rank 0 may submit nothing once this rank has left
