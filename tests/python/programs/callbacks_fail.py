"""Callbacks of operations that fail, callbacks that raise, callbacks in a forked child."""

import os
import threading

import herring
from callbacks_start import start
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()

# It fails on all ranks: the error is there in the callback, and later.
errors, there = [], threading.Event()
handle = start("differs", 5 + rank)
handle.add_done_callback(lambda h: errors.append(h.exception()))
handle.add_done_callback(lambda h: there.set())
assert there.wait(30)
assert isinstance(errors[0], herring.MismatchError), errors
raises(herring.MismatchError, "differs", handle.wait)
# What a callback raises is logged; those behind it are called, in this handle and in others.
there = threading.Event()


def bad(h):
    raise ValueError(f"bad callback of rank {rank}")


def worse(h):
    raise SystemExit(f"asked to end by rank {rank}")


handle = start("raises", 100_000)
handle.add_done_callback(bad)
handle.add_done_callback(lambda h: there.set())
assert there.wait(30)
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
assert there.wait(30)
handle.wait()
handle.add_done_callback(bad)  # here, and logged as well
# A time to wait here is over, the operation goes on.
if rank == 0:
    handle = start("slow")
    raises(herring.TimeoutError, "goes on", handle.exception, 0.05)
    herring.barrier()
else:
    herring.barrier()
    handle = start("slow")
assert handle.exception() is None
# What was forked off has no part in it.
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
