"""Frees memory of a GPU whose addresses come back as memory of another GPU or of the host."""

import ctypes

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank, size
from gpus import Pinned
from support import raises

COUNT = 300_000  # whole pages and alignments, so that the plan's arena is as long


def becomes(array, device):
    """Frees the array; its addresses are then memory of a GPU, or of the host if -1."""
    driver.reuse(array.address, device)
    if device >= 0:
        array.device, array.stream = device, driver.stream(device)


def works(array, name):
    """Uses an array on a GPU in a call, in a list and in rounds of a plan."""
    array.fill(rank + 1, 1000)
    herring.allreduce(array, "sum", name=name)
    assert (array.get() == sum(range(1, size + 1))).all(), name
    array.fill(rank + 2, 1000)
    other = GpuArray(np.full(7, rank, np.float32), array.device)
    herring.grouped_allreduce([other, array], "sum", name=f"{name}.list")
    assert (array.get() == sum(range(2, size + 2))).all(), name
    assert (other.get() == sum(range(size))).all(), name
    plan = herring.PlannedReduction([(COUNT, "float32")], name="p", op="sum", device=array.device)
    plan.place([array])
    for step in range(4):  # from the third round on, GPUs add in each other's memory
        plan.begin()
        array.fill(rank + step, 1000)
        plan.ready(0)
        plan.wait()
        assert (array.get() == sum(r + step for r in range(size))).all(), (name, step)
    assert plan.node_stage == "ipc", plan.node_stage
    plan.close()


def is_refused(array, text):
    """Asserts that a call, a list and a plan refuse an array that lies about its place."""
    plan = herring.PlannedReduction([(COUNT, "float32")], name="q", device=array.device)
    for call, argument in (
        (herring.allreduce, array),
        (herring.grouped_allreduce, [array]),
        (plan.place, [array]),
    ):
        raises(herring.InvalidArgumentError, text, call, argument)
    plan.close()


array = GpuArray(np.zeros(COUNT, np.float32))
works(array, "first")
for turn in range(2):
    becomes(array, 1)
    works(array, f"other.{turn}")
    array.device = 0
    is_refused(array, "do not lie in memory of GPU 0")

    becomes(array, -1)
    array.device = 1
    is_refused(array, "do not lie in memory of GPU 1")
    values = np.ctypeslib.as_array((ctypes.c_float * COUNT).from_address(array.address))
    values[:] = rank
    herring.allreduce(Pinned(values), "sum", name=f"host.{turn}")
    assert (values == sum(range(size))).all()
    herring.grouped_allreduce([np.ones(3), Pinned(values)], "sum", name=f"host.list.{turn}")
    assert (values == size * sum(range(size))).all()

    becomes(array, 0)
    works(array, f"again.{turn}")
herring.shutdown()
