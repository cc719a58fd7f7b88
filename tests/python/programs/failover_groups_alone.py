"""All servers of a group die at once, but not those of the job: only the group fails.

Calls, rounds of a plan and a partial all-reduce of the group are in flight.
"""

import os
import signal

import numpy as np

import herring
from herring.partial import PartialReduction
from serving import servers

ELEMENTS = 100_000
LEFT = "no server of group 'pair' (ranks 0-1) is left"

herring.init()
rank = herring.rank()
group = herring.new_group([0, 1], name="pair")
pids = [server["pid"] for server in servers()[:2]] if rank == 0 else []
herring.barrier()
if rank < 2:
    plan = herring.PlannedReduction([(ELEMENTS, "float32")], name="plan", group=group, note_bytes=1)
    series = PartialReduction(ELEMENTS, "float32", name="series", sync="solo", group=group)
    ones, result = np.ones((2, ELEMENTS), np.float32)

    def go_on() -> None:
        """Contributes to the series until it fails."""
        while True:
            list(series.step(ones, result))

    try:
        for step in range(10_000):
            array = np.ones(ELEMENTS, np.float32)
            handle = herring.allreduce_async(array, "sum", name="call", group=group)
            plan.begin()
            plan.note(b"n")
            plan.ready(0)
            list(series.step(ones, result))
            if step == 5:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            handle.wait()
            plan.wait()
        raise AssertionError("the group went on")
    except herring.PeerLostError as error:
        assert LEFT in str(error), error
    try:
        go_on()
    except herring.PeerLostError as error:
        assert LEFT in str(error), error
        print("the group failed", flush=True)
for _ in range(20):
    array = np.ones(ELEMENTS, np.float32)
    herring.allreduce(array, "sum")
    assert (array == 3).all()
print("the job went on", flush=True)
