"""Ends rank 1 (HOW) at a MOMENT of a call; the other ranks must not hang.

All timeouts are longer than the job may take, so only news of rank 1 ends what others wait for.
"""

import os
import signal
import threading

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, driver, rank, size
from support import meet_outside, tell, tell_when_waiting, told

how, moment = os.environ["HOW"], os.environ["MOMENT"]
others = [other for other in range(size) if other != 1]
gate = Gate()
array = GpuArray(np.ones(6_000_000, np.float32), 0)


def open_when_known() -> None:
    told(*(f"knows {other}" for other in others))
    gate.open()


for _ in range(int(os.environ.get("WARM", "1"))):  # GPUs know after some calls what they reach.
    herring.allreduce(array, "sum", name="warm", algorithm="cuda-butterfly")
herring.barrier()
meet_outside(rank, range(size))
if rank == 1:
    if moment != "before":
        if moment == "moving":  # A kernel makes the array, so the others begin before it is ready.
            gate.hold(array)
        array.fill(1)
        handle = herring.allreduce_async(array, "sum", name="x", algorithm="cuda-butterfly")
    if moment == "moving":
        told(*(f"waits {other}" for other in others))
        # A kernel that does not end would hold up the end of a rank that leaves.
        threading.Thread(target=open_when_known, daemon=True).start()
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    herring.shutdown()
    os._exit(0)
tell_when_waiting(f"waits {rank}", "waits in allreduce 'x'")
try:
    herring.allreduce(array, "sum", name="x", algorithm="cuda-butterfly")
    print(f"rank {rank}: no error")
    assert moment == "announced"  # The call may be complete before rank 1 ends.
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}: {error}")
tell(f"knows {rank}")
array.scale(2)
array.get()
driver.synchronize(0)  # No stream may wait for what never comes.
del array
print("nobody is parked")
