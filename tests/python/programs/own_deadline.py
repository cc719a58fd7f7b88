"""A deadline of rank FAILS alone ends its part of the job. The others learn why while it stays.

KIND "planned": rank LATE comes to its round only when the others know. KIND "array": rank LATE is
stopped when all have called, and goes on when rank FAILS has failed. All other timeouts are longer
than the job may take. What does not need the rank that failed goes on.
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

KIND = sys.argv[1]
FAILS, LATE = map(int, sys.argv[2:])
RANK = int(os.environ["HERRING_RANK"])

herring.init(timeout=4 if KIND == "planned" and RANK == FAILS else 600)
ranks = range(herring.size())
others = [rank for rank in ranks if rank != FAILS]
group = herring.new_group(others)
series = PartialReduction(8, "float32", sync="solo", name="s")
plan = herring.PlannedReduction([(300_000, "float32")], name="p") if KIND == "planned" else None
herring.barrier(timeout=600)
meet_outside(RANK, ranks)


def call() -> None:
    if plan is None:
        # Bytes that do not move for so long end the job.
        own = 2 if RANK == FAILS else 600
        herring.allreduce(np.ones(300_000, np.float32), name="x", timeout=own)
    else:
        plan.begin()
        plan.ready(0)
        plan.wait()


def stop() -> None:
    told(*(f"waits {rank}" for rank in others))
    when_stopped(lambda: (tell("stopped"), told(f"ended {FAILS}")))


if KIND == "planned" and RANK == LATE:
    told(*(f"ended {rank}" for rank in ranks if rank != LATE))
elif KIND == "array" and RANK != FAILS:
    tell_when_waiting(f"waits {RANK}", "waits in allreduce")
    if RANK == LATE:
        threading.Thread(target=stop).start()
elif KIND == "array":
    told("stopped")

if RANK == FAILS:
    raises(herring.TimeoutError, f"rank {LATE} (", call)
    tell(f"ended {RANK}")
else:
    raises(herring.PeerLostError, f"rank {FAILS} (", call)
    tell(f"ended {RANK}")
    try:
        call()
    except herring.PeerLostError as error:
        assert "its part of the job has ended: '" in str(error), error
        assert f"for rank {LATE} (" in str(error), error
        print("told why", flush=True)
    if FAILS != 0:  # which hosts the rendezvous
        assert herring.allreduce(np.ones(3), "sum", group=group, timeout=600)[0] == len(others)
        series.allreduce(np.ones(8, np.float32))
stay_until_all_know(RANK, ranks)
os._exit(0)
