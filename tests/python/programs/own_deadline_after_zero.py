"""A deadline ends a rank's part of the job after rank 0, with the rendezvous, has left."""

import os

import herring
from support import meet_outside, raises, stay_until_all_know, tell, told

RANK = int(os.environ["HERRING_RANK"])

herring.init(timeout=4 if RANK == 2 else 600)
ranks = range(herring.size())
pair = herring.new_group([1, 2])
plan = herring.PlannedReduction([(300_000, "float32")], name="p", group=pair) if RANK else None
herring.barrier(timeout=600)
meet_outside(RANK, ranks)
if plan is None:
    herring.shutdown()
    tell("zero has left")
else:
    told("zero has left")
    if RANK == 1:
        told("failed")
    plan.begin()
    plan.ready(0)
    if RANK == 2:
        raises(herring.TimeoutError, "rank 1 (", plan.wait)
        tell("failed")
    else:
        raises(herring.PeerLostError, "rank 2 (", plan.wait)
        print("told", flush=True)
stay_until_all_know(RANK, ranks)
os._exit(0)
