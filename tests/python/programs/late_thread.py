"""Ranks seem to wait for each other until a thread of rank 1 makes a late call.

It makes the call once rank 0 has warned.
"""

import logging
import threading

import numpy as np

import herring
from support import tell, told


class Noted(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), flush=True)
        if "rank 1 waits in barrier 'b'" in record.getMessage():
            tell("warned")


logging.getLogger("herring").addHandler(Noted())
herring.init()
rank = herring.rank()
x, y = np.ones(4, np.float32), np.ones(4, np.float32)


def later():
    told("warned")
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
