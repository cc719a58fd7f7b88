"""Lets a call fail behind a program; the results are NaN, and the next call reports the error."""

import os
import signal

import numpy as np

import herring
from support import meet_outside, tell, told
from xla_job import Program, array, rank

how = os.environ["HOW"]
mine = array(np.zeros(100_000, np.float32))
program = Program(mine)
assert program.start("k", [mine], [mine]) is None and program.finish("k", [mine]) is None
mine.get()
herring.barrier()
meet_outside(rank, [0, 1])
if rank == 1 and how.startswith("dies"):
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and how == "is late":
    told("late")
if how == "dies early":  # known before the GPU has come to the copies out
    mine.fill(0, 500_000)
agreement = str(rank) if how == "disagrees" else ""
error = program.start(
    "k", [mine], [mine], agreement=agreement, timeout=0.5 if how == "is late" else 0.0
)
error = error or program.finish("k", [mine])
mine.scale(1)
found = mine.get()  # No stream may wait for what never comes.
tell("late")
if error is None:
    assert np.isnan(found).all(), found[:3]
    error = program.start("k", [mine], [mine])
code, text = error
kind = {
    "dies": (14, "PeerLostError"),
    "dies early": (14, "PeerLostError"),
    "disagrees": (3, "MismatchError"),
    "is late": (4, "TimeoutError"),
}[how]
assert code == kind[0] and text.startswith("herring." + kind[1]), error
print("told:", text, flush=True)
tell(f"knows {rank}")
if not how.startswith("dies"):
    told("knows 0", "knows 1")
os._exit(0)
