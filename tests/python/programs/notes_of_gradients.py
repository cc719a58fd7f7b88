"""Averages lists of gradients; ranks use notes to tell which gradients they have."""

import numpy as np

import herring
from herring.arrays.gradients import GradientRounds, Source
from herring.base.units import ranks_text
from support import raises

herring.init()
rank, size = herring.rank(), herring.size()
sources = [Source(f"v{i}", (4,), "float32") for i in range(3)]
for op in ("average", "sum"):
    rounds = GradientRounds(sources, [0, 1], name=op, op=op, wire_dtype="float16")
    one = np.ones(4, np.float32)
    for _step in range(3):
        averages = rounds.average([0, 1], [one * (rank + 1), one])
        total = size * (size + 1) / 2 / (size if op == "average" else 1)
        assert (averages[0] == total).all() and len(averages) == 2
        assert rounds.contributors == size
        if rank == 0:
            rounds.put([2], [one])  # variable 2 has no place in the plan
        raises(
            herring.InvalidArgumentError,
            f"{op}: rank 0 has a gradient for a variable that had none",
            rounds.finish,
            [np.float32] * 2,
        )
        rounds.put([0], [one])
        who = ranks_text(range(1, size))
        if size > 1:  # all ranks except 0 restart their step
            raises(
                herring.HerringError,
                f"{op}: {who} gave up its step",
                *((rounds.put, [0], [one]) if rank else (rounds.finish, [np.float32] * 2)),
            )
        else:
            rounds.finish([np.float32] * 2)
        if rank == size - 1 and size > 1:
            rounds.shadow()
        else:
            rounds.average([0], [one])
        assert rounds.contributors == max(1, size - 1)
nothing = GradientRounds(sources, [], name="nothing")
assert nothing.average([], []) == [] and nothing.contributors == size
