"""Passes wrong arrays, and calls in the wrong order: errors say what is wrong; the job goes on."""

import numpy as np

import herring
from gpu_job import GpuArray, driver, rank
from support import raises

array = GpuArray(np.ones(1000, np.float32))
# The end of this plan leaves the neighbour's memory to a later call, because the GPU is busy.
plan = herring.PlannedReduction([(1000, "float32")], name="closed", device=0)
arena = GpuArray(np.ones(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
for _ in range(4):
    plan.begin()
    plan.ready(0)
    plan.wait()
assert plan.node_stage == "ipc", plan.node_stage
late = GpuArray(np.ones(1000, np.float32))
late.fill(1, 50_000)
handle = herring.allreduce_async(late)
plan.close()
driver.capture(array.stream, True)
if rank == 0:
    raises(
        herring.InvalidArgumentError,
        "is being captured for a CUDA graph",
        herring.allreduce,
        array,
        name="c",
    )
else:
    raises(
        herring.InvalidArgumentError,
        "was refused by rank 0",
        herring.allreduce,
        np.ones(1000, np.float32),
        name="c",
    )
assert driver.capture(array.stream, False), "what Herring called has broken the capture"
handle.wait()
for call, text in (
    (herring.allgather, "lies on GPU 0, not in host memory; copy it there first"),
    (herring.reduce_scatter, "lies on GPU 0, not in host memory"),
    (herring.alltoall, "lies on GPU 0, not in host memory"),
):
    raises(herring.InvalidArgumentError, text, call, array, name=call.__name__)
raises(
    herring.InvalidArgumentError,
    "array 1 of the list: it lies in host memory, and array 0 on GPU 0",
    herring.grouped_allreduce,
    [array, np.ones(3, np.float32)],
)
raises(
    herring.InvalidArgumentError,
    "array 1 of the list: it lies on GPU 1, and array 0 on GPU 0",
    herring.grouped_allreduce,
    [array, GpuArray(np.ones(3, np.float32), device=1)],
)
raises(
    herring.InvalidArgumentError,
    "there is no GPU 7; this process sees 2",
    herring.PlannedReduction,
    [(10, "float32")],
    name="seven",
    device=7,
)
raises(
    herring.InvalidArgumentError,
    "device is -1",
    herring.PlannedReduction,
    [(10, "float32")],
    name="less",
    device=-1,
)
freed = GpuArray(np.ones(100_000, np.float32))
driver.free(0, freed.address)
raises(
    herring.InvalidArgumentError,
    "its 400000 bytes do not lie in memory of GPU 0",
    herring.allreduce,
    freed,
)
elsewhere = GpuArray(np.ones(1000, np.float32), device=1)
elsewhere.device = 0
raises(
    herring.InvalidArgumentError,
    "its 4000 bytes do not lie in memory of GPU 0",
    herring.allreduce,
    elsewhere,
)
elsewhere.device = 1
herring._core.check_memory_of(0, array.address, 4000)  # What a call asks; a benchmark times it.
raises(
    herring.InvalidArgumentError,
    "its 8192 bytes do not lie in memory of GPU 0",
    herring._core.check_memory_of,
    0,
    array.address,
    8192,
)
plan = herring.PlannedReduction([(1000, "float32")], name="p", device=0)
raises(herring.InvalidArgumentError, "begin() before place()", plan.begin)
raises(
    herring.InvalidArgumentError,
    "arena 0 has 4000 bytes on GPU 1; this plan needs",
    plan.place,
    [GpuArray(np.ones(1000, np.float32), device=1)],
)
raises(
    herring.InvalidArgumentError,
    "in host memory; this plan needs",
    plan.place,
    [np.ones(1000, np.float32)],
)
raises(herring.InvalidArgumentError, "0 arenas on the device; this plan has 1", plan.place, [])
arena = GpuArray(np.zeros(plan.arenas[0][1] // 4, np.float32))
plan.place([arena])
raises(herring.InvalidArgumentError, "gradient 0 is ready before begin()", plan.ready, 0)
plan.begin()
raises(herring.InvalidArgumentError, "gradient 5 does not exist", plan.ready, 5)
raises(herring.InvalidArgumentError, "wait() before gradients 0 were ready", plan.wait)
plan.ready(0)
raises(herring.InvalidArgumentError, "gradient 0 is ready twice", plan.ready, 0)
plan.wait()
raises(herring.InvalidArgumentError, "place() after begin()", plan.place, [arena])
on_host = herring.PlannedReduction([(1000, "float32")], name="h")
raises(herring.InvalidArgumentError, "create it with device=", on_host.place, [arena])
herring.allreduce(array, name="all is well")
herring.shutdown()
