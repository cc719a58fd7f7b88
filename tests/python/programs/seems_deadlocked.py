"""Ranks wait for each other for longer than a deadlock would, and then they go on.

The argument says what goes on meanwhile, on rank 1 or in a server.
"""

import ctypes
import os
import queue
import signal
import sys
import threading
import time

import numpy as np

import herring
from support import meet_outside, raises, server_processes

LONG = 17  # seconds; a certain deadlock ends after about twelve

herring.init()
rank, size = herring.rank(), herring.size()
x, y = np.ones(4, np.float32), np.ones(4, np.float32)


def missing():
    herring.allreduce(x, name="a")


def computes():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass
    missing()


def sleeps():
    time.sleep(LONG)
    missing()


def in_thread(call):
    """Waits in a call that rank 0 makes after the missing one, which a thread of its own makes."""
    thread = threading.Thread(target=call)
    thread.start()
    herring.allreduce(y, name="b")
    thread.join()


def later():
    in_thread(sleeps)


def waits_for_work():
    def call():
        raises(queue.Empty, "", queue.Queue().get, timeout=LONG)
        missing()

    in_thread(call)


def has_timer():
    called = threading.Event()

    def call():
        called.wait()
        missing()

    signal.signal(signal.SIGALRM, lambda *_: called.set())
    signal.alarm(LONG)
    in_thread(call)


def waits_natively():
    """Waits in a library, with a limit, for what does not come."""
    sys.modules["mxnet"] = sys.modules["queue"]
    semaphore = ctypes.create_string_buffer(64)
    until = (ctypes.c_long * 2)(int(time.time()) + LONG, 0)
    assert ctypes.CDLL(None).sem_timedwait(semaphore, until) == -1
    missing()


def has_handler():
    """The main thread waits until somebody outside sends a signal."""
    told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    process = os.getpid()
    if os.fork() == 0:
        time.sleep(LONG)
        os.kill(process, signal.SIGUSR1)
        os._exit(0)
    told.wait()
    missing()


def gives_up():
    handle = herring.allreduce_async(y, name="b")
    raises(herring.TimeoutError, "is not complete after", handle.wait, timeout=LONG)
    missing()
    handle.wait()


def ends_itself():
    raises(herring.TimeoutError, "other", herring.barrier, name="other", timeout=LONG)
    missing()
    herring.allreduce(y, name="b")


def stop(process):
    """Stops a process; another one wakes it."""
    if os.fork() == 0:
        time.sleep(LONG)
        os.kill(process, signal.SIGCONT)
        os._exit(0)
    os.kill(process, signal.SIGSTOP)


def is_stopped():
    stop(os.getpid())
    missing()


def server_is_stopped():
    (server,) = server_processes()
    stop(server)
    missing()


def server_dies():
    def call():
        time.sleep(LONG / 2)
        os.kill(server_processes()[0], signal.SIGKILL)
        time.sleep(LONG / 2)
        missing()

    in_thread(call)


WAITING = ("later", "waits_for_work", "has_timer", "gives_up", "ends_itself", "server_dies")

herring.allreduce(y, name="warm")
meet_outside(rank, range(size))
if rank == 1:
    globals()[sys.argv[1]]()
else:
    missing()
    if sys.argv[1] in WAITING:
        herring.allreduce(y, name="b")
meet_outside(rank, range(size), "the end")
print("done", rank, flush=True)
