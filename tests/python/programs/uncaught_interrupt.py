"""Interrupts rank 0 during traffic, and prints how many seconds each rank needs to end."""

import atexit
import signal
import sys
import threading
import time

import numpy as np

import herring

start = 0.0


def end():
    herring.shutdown()
    print(f"ended in {time.monotonic() - start:.2f} s", flush=True)


atexit.unregister(herring.shutdown)
atexit.register(end)
herring.init()
array = np.zeros(int(sys.argv[1]), np.float32)


def interrupt():
    global start
    start = time.monotonic()
    signal.raise_signal(signal.SIGINT)


if herring.rank() == 0:
    threading.Timer(0.7, interrupt).start()
try:
    while True:
        herring.allreduce(array)
except herring.PeerLostError:
    start = time.monotonic()
