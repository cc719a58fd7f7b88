"""Shutdown ends operations in flight and calls their callbacks before it returns."""

import time

import herring
from callbacks_start import start
from support import raises, tell, told

herring.init()
rank, size = herring.rank(), herring.size()

herring.barrier()  # all ranks are connected before the first one leaves
seen = []
if rank == 0:
    for i in range(30):

        def ended(h, i=i):
            time.sleep(0.01)
            seen.append((i, type(h.exception()).__name__))
            raises(herring.ShutdownError, "init", herring.barrier)

        start(f"never {i}").add_done_callback(ended)
else:  # If this rank left, the others would hear of that instead.
    told("over")
if rank == 0:
    herring.shutdown()
    assert sorted(seen) == [(i, "ShutdownError") for i in range(30)], seen
    tell("over")
