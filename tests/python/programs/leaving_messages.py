"""Rank 2 leaves while the other ranks wait; messages between the others still arrive."""

import sys

import numpy as np

import herring
from support import raises, tell_when_waiting, told

herring.init()
rank = herring.rank()
wait = herring.barrier if sys.argv[1] == "barrier" else herring.join
herring.barrier()
if rank < 2:
    tell_when_waiting(f"waits {rank}")
    try:
        while True:
            wait()
    except herring.PeerLostError as error:
        assert "rank 2 (" in str(error), error
    for count in (10, 1_000_000):
        array = np.full(count, rank, np.float32)
        if rank == 0:
            herring.send(array, 1)
        else:
            herring.receive(array, 0)
            assert (array == 0).all()
    raises(herring.PeerLostError, "rank 2 (", herring.send, array, 2)
    print("exchanged", flush=True)
else:
    told("waits 0", "waits 1")
