"""All ranks wait, each in another call, and no thread is left that could make the missing ones.

The argument says in which calls. Each rank prints its error.
"""

import ctypes
import queue
import sys
import threading
from multiprocessing import Queue

import numpy as np

import herring
from support import tell, told

herring.init()
rank, size = herring.rank(), herring.size()
x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
around = (rank + 1) % size


def calls():
    herring.allreduce(x, name="ab"[rank % 2])


def messages():
    herring.receive(y, around)


def groups():
    """Each group of two ranks waits for the one that waits for the next group."""
    groups = [herring.new_group(sorted((i, (i + 1) % size))) for i in range(size)]
    for of in (rank, rank - 1):
        herring.barrier(group=groups[of % size])


def rounds():
    plan = herring.PlannedReduction([(100_000, "float32")], name="p")
    if rank == 0:
        plan.begin()
        plan.ready(0)
        plan.wait()
    else:
        herring.barrier(name="b")


def threads():
    """The main thread waits for a thread of its own, and others wait for work."""
    work = queue.Queue()
    threading.Thread(target=work.get, daemon=True).start()
    fed = Queue()
    fed.put("an element")  # its thread waits for others
    failed = []

    def call():
        try:
            calls()
        except herring.TimeoutError as error:
            failed.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert fed.get() == "an element"
    raise failed[0]


def native():
    """The main thread waits in a library for a thread of its own."""
    library, semaphore = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.sem_init(semaphore, 0, 0)
    failed = []

    def call():
        try:
            calls()
        except herring.TimeoutError as error:
            failed.append(error)
        library.sem_post(semaphore)

    threading.Thread(target=call).start()
    library.sem_wait(semaphore)
    raise failed[0]


def foreign():
    """A library is there whose threads could call Herring, and none does."""
    sys.modules["mxnet"] = sys.modules["queue"]
    native()


herring.allreduce(x, name="warm")
try:
    globals()[sys.argv[1]]()
except herring.TimeoutError as error:
    print(f"rank {rank}: {error}", flush=True)
tell(f"out {rank}")
told(*(f"out {other}" for other in range(size)))
