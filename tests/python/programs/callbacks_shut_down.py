"""A callback shuts the job down."""

import threading

import herring
from callbacks_start import start

herring.init()
rank, size = herring.rank(), herring.size()

there = threading.Event()


def end(h):
    herring.shutdown()
    there.set()


handle = start("last", 100_000)
herring.barrier()
handle.add_done_callback(end)
assert there.wait(600) and not herring.is_initialized()
