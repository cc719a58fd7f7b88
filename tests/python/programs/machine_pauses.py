"""A machine stands still while a call times out: the call fails, and the job goes on.

Rank 1 stops rank 0 and the server, and lets the server go on after rank 0 has looked at its
deadlines.
"""

import os
import signal
import time
from pathlib import Path

import numpy as np

import herring
from support import is_stopped, raises, server_process, tell, told, until

TIMEOUT = 3.0
PAUSE = 6.0  # longer than a server may be late with a timeout


def stop(process: int) -> None:
    os.kill(process, signal.SIGSTOP)
    until(lambda: is_stopped(process))


def turns(process: int) -> int:
    """Returns how often threads of a process have waited."""
    files = Path(f"/proc/{process}/task").glob("*/status")
    lines = [line.split() for file in files for line in file.read_text().splitlines()]
    return sum(int(line[1]) for line in lines if line[0] == "voluntary_ctxt_switches:")


herring.init()
if herring.rank() == 0:
    Path(os.environ["FOLDER"], "number").write_text(str(os.getpid()))
    tell("process")
    told("begin")
    handle = herring.allreduce_async(np.ones(4), name="missed", timeout=TIMEOUT)
    tell("begun")
    raises(herring.TimeoutError, "'missed'", handle.wait)
    tell("over")
else:
    told("process")
    process = int(Path(os.environ["FOLDER"], "number").read_text())
    server = server_process()
    tell("begin")
    told("begun")
    stop(server)
    stop(process)
    end = time.monotonic() + PAUSE
    until(lambda: time.monotonic() > end)
    before = turns(process)
    os.kill(process, signal.SIGCONT)
    until(lambda: turns(process) > before + 2)
    os.kill(server, signal.SIGCONT)
    told("over")
print("sum", herring.allreduce(np.ones(4), op="sum", name="after")[0], flush=True)
