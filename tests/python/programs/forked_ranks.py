"""Each rank is a child that multiprocessing forks, and ends without shutdown().

Usage: forked_ranks.py returns|raises|thread
"""

import multiprocessing
import sys
import threading

import numpy as np

import herring


def work(how):
    herring.init()
    rank = herring.rank()
    herring.barrier()
    if rank == 0 and how == "thread":  # It goes on after the function has returned.
        threading.Thread(target=late).start()
        return
    if rank == 0 and how == "raises":
        raise ValueError("rank 0 fails by itself")
    if rank == 0:
        return
    try:
        herring.allreduce(np.ones(3), name="late")
        assert how == "thread"
        print("all are there", flush=True)
    except herring.PeerLostError as error:
        print(f"rank {rank} hears: {error}", flush=True)


def late():
    threading.main_thread().join()
    herring.allreduce(np.ones(3), name="late")


child = multiprocessing.get_context("fork").Process(target=work, args=sys.argv[1:])
child.start()
child.join()
sys.exit(child.exitcode)
