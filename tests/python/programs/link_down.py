"""Reduces until the job is lost, and prints after how many seconds that was noticed."""

import sys
import time

import numpy as np

import herring

herring.init()
rank, array = herring.rank(), np.ones(200_000, np.float32)
herring.allreduce(array)
last = time.monotonic()
try:
    while True:
        herring.allreduce(array, "average")
        last = time.monotonic()
        if rank == 0:
            open(sys.argv[1], "a").close()  # all are at work
except herring.PeerLostError as error:
    print("lost", rank, time.monotonic() - last, error, flush=True)
