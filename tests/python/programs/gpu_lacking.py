"""Rank 1 cannot use its GPU: typed errors on both ranks; the job goes on.

It lacks CUDA's driver, or a function of it, or all means by which streams can wait.
"""

import os
import sys

lacking = os.environ["LACKING"]  # "driver", "waits", or a function
if os.environ["HERRING_RANK"] == "1":
    if lacking == "waits":
        os.environ["STANDIN_STREAM_MEMORY"] = "0"
        if compiler := os.environ.pop("OLD", None):  # which only a new process finds
            os.environ["LD_LIBRARY_PATH"] = compiler
            os.execv(sys.executable, [sys.executable, *sys.argv])
    elif lacking != "driver":
        os.environ["STANDIN_LACKS"] = lacking
    elif os.environ.pop("LD_LIBRARY_PATH", None):  # which only a new process forgets
        os.execv(sys.executable, [sys.executable, *sys.argv])

import numpy as np  # noqa: E402

import herring  # noqa: E402
from gpus import GpuArray  # noqa: E402
from support import raises  # noqa: E402


class Claims:
    """An array of a library that sees a GPU without a driver that Herring can use."""

    shape = (1000,)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: int | None = None):
        raise AssertionError("nothing may take the array")


herring.init()
rank = herring.rank()
text = "no CUDA driver: libcuda.so.1"
if lacking == "waits":
    text = "kernels cannot wait instead: the NVRTC library lacks a function"
elif lacking != "driver":
    text = f"has no {lacking} of CUDA 11.7; a driver for CUDA 11.7 or later is needed"
if rank == 0:
    array, kind = GpuArray(np.ones(1000, np.float32)), herring.InvalidArgumentError
else:
    array, kind = Claims(), herring.ConfigurationError
    if lacking != "waits":
        raises(kind, text, herring._core.describe_devices)
for call in (
    lambda: herring.allreduce(array, "sum", name="a"),
    lambda: herring.allreduce(array, "sum", name="b", algorithm="cuda-butterfly"),
    lambda: herring.grouped_allreduce([array], "sum", name="c"),
    lambda: herring.PlannedReduction([(1000, "float32")], name="p", device=0),
):
    raises(kind, text, call)
    if rank == 0:
        raises(kind, "refused by rank 1", call)  # Again, for the other part of the text.
    else:
        raises(kind, text, call)

# Where a rank has no GPU, its arrays in host memory go on.
if rank == 1:
    array = np.ones(1000, np.float32)
herring.allreduce(array, "sum", name="mixed")
assert ((array if rank else array.get()) == 2).all()
plan = herring.PlannedReduction(
    [(1000, "float32")], name="mixed plan", op="sum", device=None if rank else 0
)
arena = plan.arena(0).view(np.float32) if rank else GpuArray(np.zeros(1000, np.float32))
if rank == 0:
    plan.place([arena])
for _ in range(4):
    plan.begin()
    if rank:
        arena[:] = 2
    else:
        arena.fill(1)
    plan.ready(0)
    plan.wait()
    assert ((arena if rank else arena.get()) == 3).all()
assert plan.node_stage == "host"
herring.shutdown()
