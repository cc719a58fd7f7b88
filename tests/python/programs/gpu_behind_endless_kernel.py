"""Makes calls behind a kernel that never ends, while the job ends (HOW)."""

import os
import signal
import sys

import numpy as np

import herring
from gate import Gate
from gpu_job import GpuArray, rank
from support import meet_outside, raises, tell, tell_when_waiting, told

how = os.environ["HOW"]
array = GpuArray(np.full(100_000, 1.0, np.float32), tells=False)
half = herring.new_group([0, 1])
herring.barrier()
meet_outside(rank, range(3))
if rank == 0:
    Gate().hold(array)
    array.fill(1)
    handle = herring.allreduce_async(array, name="grouped", group=half)
    tell_when_waiting("waits")
    text = "enough" if how == "aborts" else "rank 1"
    kind = herring.HerringError if how == "aborts" else herring.PeerLostError
    # Nobody tells rank 0 that a rank has left, so only a timeout ends a call then.
    if how != "leaves":
        raises(kind, text, herring.allreduce, array, name="x")
        raises(kind, text, handle.wait)
    raises(herring.HerringError, "", herring.allreduce, array, name="y", timeout=1)
    herring.shutdown()
    print("rank 0 has ended")
    sys.stdout.flush()
    tell("over")
    os._exit(0)
told("waits")
if rank == 2:
    told("over")  # A rank that leaves would be another reason to fail.
if rank == 1:
    {
        "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leaves": herring.shutdown,
        "aborts": lambda: herring.abort("enough"),
    }[how]()
