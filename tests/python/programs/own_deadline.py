"""A deadline of rank FAILS alone ends its part of the job. The others learn why.

Its process STAYS ("yes"), or leaves the job at once ("no").
KIND "planned": rank LATE comes to its round only when the others know. KIND "array", "ring" (a
schedule) and "meeting" (the first schedule of all): rank LATE is stopped when all have called, and
goes on when rank FAILS has failed. All other timeouts are longer than the job may take. What does
not need the rank that failed goes on.
"""

import os
import sys
import threading

import numpy as np

import herring
from herring.partial import PartialReduction
from support import (
    meet_outside,
    raises,
    stay_until_all_know,
    tell,
    tell_when_waiting,
    told,
    when_stopped,
)

KIND, STAYS = sys.argv[1], sys.argv[4] == "yes"
FAILS, LATE = map(int, sys.argv[2:4])
RANK = int(os.environ["HERRING_RANK"])

herring.init(timeout=4 if KIND == "planned" and RANK == FAILS else 600)
ranks = range(herring.size())
others = [rank for rank in ranks if rank != FAILS]
group = herring.new_group(others)
series = PartialReduction(8, "float32", sync="solo", name="s")
plan = herring.PlannedReduction([(300_000, "float32")], name="p") if KIND == "planned" else None
algorithm = "herring" if KIND == "array" else "ring"
if KIND == "ring":
    herring.allreduce(np.ones(300_000, np.float32), algorithm=algorithm)
herring.barrier(timeout=600)
meet_outside(RANK, ranks)


def call() -> None:
    if plan is None:
        # Bytes that do not move for so long end the job.
        own = 2 if RANK == FAILS else 600
        herring.allreduce(np.ones(300_000, np.float32), name="x", timeout=own, algorithm=algorithm)
    else:
        plan.begin()
        plan.ready(0)
        plan.wait()


def stop() -> None:
    told(*(f"waits {rank}" for rank in others))
    when_stopped(lambda: (tell("stopped"), told(f"ended {FAILS}")))


if KIND == "planned" and RANK == LATE:
    told(*(f"ended {rank}" for rank in ranks if rank != LATE))
elif KIND != "planned" and RANK != FAILS:
    tell_when_waiting(f"waits {RANK}", "waits in allreduce")
    if RANK == LATE:
        threading.Thread(target=stop).start()
elif KIND != "planned":
    told("stopped")

if RANK == FAILS:
    # In a ring it waits for its neighbour there, which may wait for rank LATE.
    awaited = f"rank {LATE} (" if KIND in ("planned", "array") else "'x'"
    raises(herring.TimeoutError, awaited, call)
    if not STAYS:
        herring.shutdown()
    tell(f"ended {RANK}")
else:
    raises(herring.PeerLostError, f"rank {FAILS} (", call)
    tell(f"ended {RANK}")
    try:
        call()
    except herring.PeerLostError as error:
        # The end of its connections, or of what listens for them, may tell of it first.
        first = KIND == "ring" or (KIND == "meeting" and "cannot connect to" in str(error))
        assert first or "its part of the job has ended: '" in str(error), error
        assert KIND in ("ring", "meeting") or f"for rank {LATE} (" in str(error), error
        print("told why", flush=True)
    # Rank 0 hosts the rendezvous, and a rank that leaves takes the server of its node with it.
    if FAILS != 0 and (STAYS or herring.local_size() == herring.size()):
        assert herring.allreduce(np.ones(3), "sum", group=group, timeout=600)[0] == len(others)
        series.allreduce(np.ones(8, np.float32))
stay_until_all_know(RANK, ranks)
os._exit(0)
