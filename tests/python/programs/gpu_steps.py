"""Steps on GPUs, in which the driver may fail; every rank prints its error.

If MOMENT is a number, rank 0 loses its GPU at this driver call of a step; with 0 it loses the GPU
while it waits for the last rank, which does not come before the others know of the loss.
"""

import os
import threading

import numpy as np

import herring
from gpu_job import GpuArray, driver, gpus, rank, size
from support import tell, told, until, waits

calls, moment = os.environ["CALLS"], os.environ.get("MOMENT")
LAST = 4  # a step after GPUs have begun to add
device, plan = rank % gpus, None
arrays = [GpuArray(np.zeros(300_000, np.float32), device) for _ in range(2)]


def make_plan() -> herring.PlannedReduction:
    made = herring.PlannedReduction(
        [(100_000, "float32")] * 3,
        name="p",
        device=device,
        buffer_bytes=1 << 19,
        wire_dtype="bfloat16" if calls == "casts" else None,
    )
    made.place(arrays[:1])
    return made


def lose_in_wait() -> None:
    until(waits)
    driver.lose(0, 0)


def take_step(step: int) -> None:
    late = moment == "0" and step == LAST and rank == size - 1
    if calls in ("rounds", "casts"):
        plan.begin()
        arrays[0].fill(rank + step)
        plan.ready_all([0, 1])
        if late:
            told("knows 0", "knows 1")
        plan.ready_all([2])
        plan.wait()
        made = arrays[:1]
    else:
        if late:
            told("knows 0", "knows 1")
        for one in arrays:
            one.fill(rank + step)
        made = arrays if calls == "lists" else arrays[:1]
        if calls == "lists":
            herring.grouped_allreduce(made, "average")
        elif calls == "broadcasts":
            herring.broadcast(made[0], 1)
        else:
            chosen = "cuda-butterfly" if calls == "butterfly" else "herring"
            herring.allreduce(made[0], "average", algorithm=chosen)
    expected = step + (1 if calls == "broadcasts" else (size - 1) / 2)
    assert all((one.get() == expected).all() for one in made), (step, made[0].get()[:4])


step = 0
try:
    if calls in ("rounds", "casts"):
        plan = make_plan()
    for step in range(LAST + 1 if moment is None else LAST + 3):
        if step == LAST and moment is not None:
            stage = os.environ.get("HERRING_NODE_STAGE")
            assert None in (plan, stage) or plan.node_stage in ("host", stage), plan.node_stage
            herring.barrier()
            if rank == 0 and moment == "0":
                threading.Thread(target=lose_in_wait).start()
            elif rank == 0:
                driver.lose(int(moment), 0)
        take_step(step)
    print(f"rank {rank}: no error")
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__} in step {step}: {error}", flush=True)
if moment == "0":
    tell(f"knows {rank}")
if plan is not None:
    plan.close()
herring.shutdown()
