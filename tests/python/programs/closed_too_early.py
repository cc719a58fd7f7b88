"""Rank 1 closes a plan before all gradients are ready, so no rank can finish the round.

Every rank learns why.
"""

import herring
from support import meet_outside, raises

herring.init()
rank, size = herring.rank(), herring.size()
plan = herring.PlannedReduction([(400_000, "float32")] * 3, name="p", buffer_bytes=1 << 20)
meet_outside(rank, range(size))


def average():
    plan.begin()
    for i in range(3):
        plan.ready(i)
    plan.wait()


if rank == 1:
    view = plan.arena(0)
    view[:] = 1
    plan.begin()
    plan.ready(1)
    plan.ready(0)
    plan.close()
    view.sum()  # the view outlives the plan
    own = herring.empty(1_200_000)
    own[:] = -1
    raises(
        herring.ShutdownError,
        "'p' was closed inside round 0, before gradients 2 were ready",
        lambda: [herring.barrier() for _ in range(100)],
    )
    assert (own == -1).all()
    view[:] = 4
else:
    raises(herring.PeerLostError, "'p' was closed inside round 0", average)
    plan.close()
print("told", flush=True)
