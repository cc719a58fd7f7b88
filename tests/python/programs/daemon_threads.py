"""Ends the interpreter while daemon threads still wait."""

import threading
import time

import numpy as np

import herring

herring.init()
all_there = threading.Barrier(31)


def wait(number):
    all_there.wait()
    try:
        herring.allreduce(np.zeros(10), name=f"never.{herring.rank()}.{number}")
    except herring.HerringError:
        pass
    while True:
        herring.is_initialized()


for number in range(30):
    threading.Thread(target=wait, args=(number,), daemon=True).start()
all_there.wait()
time.sleep(0.1)
