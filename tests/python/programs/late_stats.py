"""A rank that is late in each step learns by how much, and what its servers' links do."""

import time

import numpy as np

import herring

LATE = 0.02  # seconds

herring.init()
rank = herring.rank()
assert herring.stats()["late_seconds"] == 0
plan = herring.PlannedReduction([(1000, "float32")], name="model")
end = time.monotonic() + 600
while True:
    plan.begin()
    if rank == 1:
        time.sleep(LATE)
    plan.ready(0)
    plan.wait()
    stats = herring.stats()
    # The others are late only by chance, so their mean stays below.
    goes_on = rank == 1 and stats["late_seconds"] < LATE / 2
    assert time.monotonic() < end, stats
    if herring.allreduce(np.array([float(goes_on)]), op="max", name="go")[0] == 0:
        break
for server in stats["servers"]:
    assert server["retransmits"] >= 0, stats
    assert server["rtt"] is None or 0 < server["rtt"] < 60, stats
assert any(server["rtt"] for server in stats["servers"]), stats
plan.close()
herring.shutdown()
