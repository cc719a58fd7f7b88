"""A rank forks, dies, leaves or aborts while several threads of a node add."""

import os
import signal
import sys
import threading

import herring
from node_helpers import helpers
from support import meet_outside, until

herring.init()
rank = herring.rank()
array = herring.empty(3_000_000)
array[:] = 1
herring.allreduce(array, "max")
until(lambda: helpers() == 2)  # A thread has its name a little after it has begun.
how = os.environ["HOW"]
end = None
if how == "forks":
    for _step in range(20):
        child = os.fork()
        if child == 0:
            assert helpers() == 0
            sys.exit(0)  # the child exits with its copy of the job's state
        herring.allreduce(array, "max")
        assert os.waitpid(child, 0)[1] == 0
meet_outside(rank, range(3))
if how != "forks" and rank == 1:
    ends = {
        "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "leaves": herring.shutdown,
        "aborts": lambda: herring.abort("enough"),
    }
    end = threading.Timer(0.3, ends[how])
    end.start()
try:
    for _step in range(100_000 if how != "forks" else 1):
        herring.allreduce(array, "max")
        array[:] = 1
    assert how == "forks"
except herring.HerringError as error:
    print(f"rank {rank}: {type(error).__name__}")
del array
if end is not None:
    end.join()  # the calls fail before the other thread has left the job
herring.shutdown()
until(lambda: helpers() == 0)  # The system may list a thread a little longer.
print(f"rank {rank} has ended")
