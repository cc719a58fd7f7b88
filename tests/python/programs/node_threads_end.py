"""A rank forks, dies, leaves or aborts while several threads of a node add."""

import os
import signal
import sys
import threading

import herring
from node_helpers import helpers

herring.init()
rank = herring.rank()
array = herring.empty(3_000_000)
array[:] = 1
herring.allreduce(array, "max")
assert helpers() == 2
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
elif rank == 1:
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
assert helpers() == 0
print(f"rank {rank} has ended")
