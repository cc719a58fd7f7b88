"""Ranks seem to wait for each other until a thread of rank 1 makes a late call."""

import threading
import time

import numpy as np

import herring

herring.init()
rank = herring.rank()
x, y = np.ones(4, np.float32), np.ones(4, np.float32)


def later():
    time.sleep(3.0)  # longer than until the warning
    herring.allreduce(y, name="a")


if rank == 0:
    herring.allreduce(x, name="a")
    herring.barrier(name="b")
else:
    thread = threading.Thread(target=later)
    thread.start()
    herring.barrier(name="b")
    thread.join()
print("done", rank)
