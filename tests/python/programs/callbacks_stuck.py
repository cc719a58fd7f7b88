"""Checks that shutdown gives up waiting for a callback that does not end."""

import time

import herring
from callbacks_start import start

herring.init()
rank, size = herring.rank(), herring.size()


def sleep(h):
    time.sleep(1000)


if rank == 0:
    h = start("stuck")
    h.add_done_callback(sleep)
herring.barrier()
if rank == 1:
    h = start("stuck")
h.wait()
begin = time.monotonic()
herring.shutdown()
spent = time.monotonic() - begin
assert rank == 1 or spent > 5, spent
