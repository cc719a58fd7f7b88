"""All servers of a group die at once, but not those of the job: only the group fails."""

import os
import signal

import numpy as np

import herring
from serving import servers

herring.init()
rank = herring.rank()
group = herring.new_group([0, 1], name="pair")
plan = None
if rank < 2:
    plan = herring.PlannedReduction([(100_000, "float32")], name="pair's", group=group)
    plan.begin()
    plan.ready(0)
    plan.wait()
herring.barrier()
if rank == 0:
    for server in servers()[:2]:
        os.kill(server["pid"], signal.SIGKILL)
if rank < 2:
    try:
        while True:
            herring.allreduce(np.ones(10_000, np.float32), "sum", name="a", group=group)
    except herring.PeerLostError as error:
        assert "no server of group 'pair' (ranks 0-1) is left" in str(error), error
    try:
        plan.begin()
        plan.ready(0)
        plan.wait()
        raise AssertionError("the group went on")
    except herring.PeerLostError:
        print("the group failed", flush=True)
for _ in range(20):
    ones = np.ones(100_000, np.float32)
    herring.allreduce(ones, "sum")
    assert (ones == 3).all()
print("the job went on", flush=True)
