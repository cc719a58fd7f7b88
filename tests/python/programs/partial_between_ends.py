"""Rounds between workers end in errors: a rank dies, leaves, or never comes."""

import os
import signal

import numpy as np

import herring
from support import stay_until_all_know

how = os.environ["HOW"]
herring.init()
rank, size = herring.rank(), herring.size()
work = np.ones(int(os.environ["ELEMENTS"]))


def call(step, **options):
    herring.allreduce(work, sync=os.environ["SYNC"], algorithm="doubling", **options)
    if rank == 1 and step == 5:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "leaves":
            herring.shutdown()
            raise SystemExit
        if how == "stays away":
            stay_until_all_know(rank, range(size))
            raise SystemExit


try:
    for step in range(1_000_000):
        call(step)
except herring.HerringError as error:
    print(f"rank {rank} is told by {type(error).__name__}: {error}", flush=True)
everybody = [r for r in range(size) if r != 1 or how == "stays away"]
stay_until_all_know(rank, everybody)
