"""The last rank dies, perhaps with its machine's server, while groups work.

The first argument is the number of elements. With "begins" as the second, the rank first starts
operations of its own. All timeouts are longer than the job may take.
"""

import os
import signal
import sys

import numpy as np

import herring
from support import meet_outside, raises

herring.init()
r, n = herring.rank(), herring.size()
victim, count, begins = n - 1, int(sys.argv[1]), sys.argv[2:] == ["begins"]
rest = list(range(n - 1))
made = {"doomed": [0, victim], "rest": rest, "pair": rest[-2:]}
groups = {name: herring.new_group(ranks, name=name) for name, ranks in made.items()}
plan = herring.PlannedReduction([(count, "float32")], op="sum")
herring.barrier()
meet_outside(r, range(n))
if r == victim:
    if begins:  # its calls may complete or not
        begun = [
            herring.allreduce_async(np.ones(count, np.float32), "sum", name="world"),
            herring.allreduce_async(
                np.ones(count, np.float32), "sum", name="ring", algorithm="ring"
            ),
            herring.allreduce_async(herring.empty(count), "sum", name="d", group=groups["doomed"]),
        ]
        begun[0].wait()
    os.kill(os.getpid(), signal.SIGKILL)
lost = herring.PeerLostError


def keep_on(step):
    for name in ("rest", "pair"):
        group = groups[name]
        if group.rank is None:
            continue
        array = herring.empty(count)
        array[:] = r + step
        herring.allreduce(array, "sum", group=group, algorithm=("herring", "ring")[step % 2])
        assert (array == sum(x + step for x in group.ranks)).all(), (name, step)


def run_round():
    plan.begin()
    plan.ready(0)
    plan.wait()


# All calls are in flight at once; some ranks may learn of the death before they call.
calls = [
    lambda: herring.allreduce_async(np.ones(count, np.float32), "sum", name="world"),
    lambda: herring.allreduce_async(
        np.ones(count, np.float32), "sum", name="ring", algorithm="ring"
    ),
]
if r == 0:
    calls.append(
        lambda: herring.allreduce_async(
            herring.empty(count), "sum", name="d", group=groups["doomed"]
        )
    )
handles = []
for call in calls:
    try:
        handles.append(call())
    except lost as error:
        assert f"rank {victim} (" in str(error), error
keep_on(0)
for handle in handles:
    try:
        handle.wait()
    except lost as error:
        assert f"rank {victim} (" in str(error), error
    else:
        assert begins
raises(lost, f"rank {victim} (", run_round)
for step in range(1, 11):
    keep_on(step)
raises(lost, "", herring.barrier)
raises(lost, "", herring.new_group, [r, victim])
late = herring.new_group(rest)
array = np.full(count, 1.0, np.float32)
assert (herring.allreduce(array, "sum", group=late) == len(rest)).all()
series = herring.PartialReduction(1000, "float32", sync="solo", group=late)
list(series.flush(np.ones(1000, np.float32)))
late.destroy()
print("went on", r, flush=True)
