"""Fails a round on the GPU (HOW): nobody may take what is in the arenas then for averages."""

import os
import signal
import time

import numpy as np

import herring
from gpu_job import GpuArray, rank, size
from support import meet_outside

how, wanted, wire = os.environ["HOW"], os.environ["WANTED"], os.environ.get("WIRE")
gpus = int(os.environ.get("GPUS", "2"))
sizes = [(300_000, "float32"), (300_000, "float64"), (300_000, "float32"), (50_000, "float64")]
plan = herring.PlannedReduction(
    sizes, name="p", op="sum", device=rank % gpus, buffer_bytes=1 << 20, wire_dtype=wire
)
tells = os.environ.get("TELLS", "1") == "1"
counts = {np.dtype(dtype): nbytes // np.dtype(dtype).itemsize for dtype, nbytes in plan.arenas}
arenas = [GpuArray(np.zeros(n, dtype), rank % gpus, tells) for dtype, n in counts.items()]
plan.place(arenas)
buffers = plan.buffers


def begin():
    for arena in arenas:
        arena.store(np.full(counts[arena.dtype], rank + 1, arena.dtype), 500)
    plan.begin()


def error_of(call):
    try:
        call()
    except herring.HerringError as error:
        return error
    raise AssertionError("no error")


for _ in range(3):
    begin()
    plan.ready_all(range(4))
    plan.wait()
    for arena in arenas:
        assert (arena.get() == sum(range(size + 1))).all()
assert plan.node_stage == wanted, plan.node_stage

begin()
plan.ready(0)  # Some of it may be averaged everywhere before the end.
herring.barrier()
if rank < size - 1:
    plan.ready_all(range(1, 4))
meet_outside(rank, range(size))
if rank == size - 1:
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    herring.abort("the lid is open")
while isinstance(first := error_of(plan.wait), herring.InvalidArgumentError):
    time.sleep(0.01)  # The end of the job has not come here, so gradients are missing.
assert how == "dies" or "the lid is open" in str(first), first


def check_poisoned():
    for index, arena in enumerate(arenas):
        lost = np.isnan(arena.get())
        # Neighbours' GPUs may still read the rest of an arena that they can reach.
        reached = wanted == "ipc" and not (wire and arena.dtype == np.float32)
        for place, offset, nbytes in buffers:
            if place != index:
                continue
            part = lost[offset // arena.dtype.itemsize :][: nbytes // arena.dtype.itemsize]
            assert part.any() if reached else part.all(), (index, offset, part.mean())


check_poisoned()
# The plan cannot be used any more, and says why.
for call in (plan.wait, plan.begin, lambda: plan.ready(1), lambda: plan.notes):
    error = error_of(call)
    assert (type(error), str(error)) == (type(first), str(first)), (error, first)
check_poisoned()
plan.close()
check_poisoned()
print("poisoned")
os._exit(0)  # The others may still be waiting; a rank that leaves would be another reason to fail.
