"""Prints which share of their bytes collectives move over the network."""

import numpy as np

import herring

herring.init()
rank, count = herring.rank(), 1_000_000
array = np.full(count, float(rank), np.float32)


def moved(call):
    herring.barrier()
    before = herring.stats()
    call()
    after = herring.stats()
    return [(after[key] - before[key]) / array.nbytes for key in ("bytes_sent", "bytes_received")]


found = [
    moved(lambda: herring.broadcast(array, 1)),
    moved(lambda: herring.reduce_scatter(array)),
    moved(lambda: herring.allgather(array[: count // 4])),
    moved(lambda: herring.alltoall(array)),
]
everyone = herring.allgather_object(found)
if rank == 0:
    for name, of in zip(("broadcast", "reduce_scatter", "allgather", "alltoall"), zip(*everyone)):
        print("moved", name, *(f"{sent:.1f}/{received:.1f}" for sent, received in of))
