"""Reduces until a rank is lost, and says so."""

import sys

import numpy as np

import herring

herring.init()
rank, array = herring.rank(), np.ones(200_000, np.float32)
herring.allreduce(array)
try:
    while True:
        herring.allreduce(array, "average")
        if rank == 0:
            open(sys.argv[1], "a").close()  # all ranks are working
except herring.PeerLostError as error:
    print("lost", rank, error, flush=True)
