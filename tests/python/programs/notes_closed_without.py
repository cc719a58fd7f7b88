"""Rank 1 closes a plan whose gradients are all ready but whose note was not given."""

import herring
from support import raises

herring.init()


def begin():
    plan = herring.PlannedReduction([(10, "float32")], name="p", note_bytes=1)
    plan.begin()
    plan.ready(0)
    return plan


def whole_round():  # any of these calls may fail, as rank 1 may be ahead
    plan = begin()
    plan.note(b"a")
    plan.wait()


if herring.rank() == 1:
    begin().close()
    raises(
        herring.ShutdownError,
        "'p' was closed inside round 0, before the note was given",
        lambda: [herring.barrier() for _ in range(100)],
    )
else:
    raises(herring.PeerLostError, "'p' was closed inside round 0", whole_round)
print("told", flush=True)
