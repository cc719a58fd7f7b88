"""Rank 1 closes a plan whose gradients are all ready; the other ranks still need the round.

The other ranks contribute only after they know that rank 1 has closed its plan. Their round and
all later operations still have the right results.
"""

import numpy as np

import herring

herring.init()
rank, size = herring.rank(), herring.size()
for wire in (None, "bfloat16"):
    for _again in range(3):
        plan = herring.PlannedReduction([(400_000, "float32"), (3, "float32")], wire_dtype=wire)
        plan.begin()
        plan.arena(0).view("float32")[:] = rank
        if rank == 1:
            plan.ready(1)
            plan.ready(0)
            plan.close()
            others = [herring.empty(400_000) for _ in range(4)]
            for one in others:
                one[:] = -1
        herring.barrier()
        if rank != 1:
            plan.ready(0)
            plan.ready(1)
            plan.wait()
            values = plan.arena(0).view("float32")
            assert (values[:400_000] == (size - 1) / 2).all(), values[:4]
            assert plan.contributors == size
            plan.close()
        herring.barrier()
        if rank == 1:  # memory allocated after the close belongs to rank 1
            assert all((one == -1).all() for one in others)
            del one, others
total = np.full(100_000, rank, np.float32)
herring.allreduce(total, "sum")
assert (total == size * (size - 1) / 2).all()
