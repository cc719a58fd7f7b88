"""Tests callbacks of operations that fail, that raise, and that run in a forked child."""

import os
import threading

import herring
from callbacks_start import start
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()

# The operation fails on all ranks; the callback sees the error, and so does a later wait.
errors, there = [], threading.Event()
handle = start("differs", 5 + rank)
handle.add_done_callback(lambda h: errors.append(h.exception()))
handle.add_done_callback(lambda h: there.set())
assert there.wait(600)
assert isinstance(errors[0], herring.MismatchError), errors
raises(herring.MismatchError, "differs", handle.wait)
# An exception of a callback is logged. Later callbacks of this and other handles are still called.
there = threading.Event()


def bad(h):
    raise ValueError(f"bad callback of rank {rank}")


def worse(h):
    raise SystemExit(f"asked to end by rank {rank}")


handle = start("raises", 100_000)
handle.add_done_callback(bad)
handle.add_done_callback(lambda h: there.set())
assert there.wait(600)
handle.wait()
there = threading.Event()
if rank == 0:
    handle = start("after")
    handle.add_done_callback(worse)
    handle.add_done_callback(bad)
    herring.barrier()
else:
    herring.barrier()
    handle = start("after")
handle.add_done_callback(lambda h: there.set())
assert there.wait(600)
handle.wait()
handle.add_done_callback(bad)  # called on this thread; the exception is also logged
# When the timeout of a wait passes, the operation goes on.
if rank == 0:
    handle = start("slow")
    raises(herring.TimeoutError, "goes on", handle.exception, 0.05)
    herring.barrier()
else:
    herring.barrier()
    handle = start("slow")
assert handle.exception() is None
# A forked child takes no part in operations that are in flight.
herring.barrier()
if rank == 0:
    handle = start("forked")
    done = start("done")
    done.wait()
    child = os.fork()
    if child == 0:
        seen = []
        done.add_done_callback(seen.append)
        try:
            handle.add_done_callback(seen.append)
        except herring.ShutdownError as error:
            assert "fork" in str(error), str(error)
            os._exit(7 if seen == [done] else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    herring.barrier()
else:
    start("done").wait()
    herring.barrier()
    handle = start("forked")
handle.wait()
herring.barrier()
