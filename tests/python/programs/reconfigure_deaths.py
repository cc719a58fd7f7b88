"""Members die at any moment, and others come in their place; the test kills and starts them.

Each process goes through the same turns. In a turn one place's process dies, the others go on
without it, a new process takes the place, and all go on together.
"""

import os
import signal

import torch

import herring
from reconfigure_support import (
    HAS_FRONT,
    RANK,
    SIZE,
    begin,
    dist,
    done,
    exchange,
    meet,
    reconfigure,
    require_sum,
    store,
)
from support import raises

ALL = list(range(SIZE))
# Who dies in a turn, and how: inside a collective, or between handles and reconfigure.
DEATHS = [(2, "collective"), (0, "collective"), (1, "handles"), (0, "handles")]
first = int(os.environ.get("TURN", "0"))  # the turn in which this process was started

group = begin()
if first == 0:
    reconfigure(group, 1, exchange(group, "begin", ALL))
    require_sum(group, ALL)


def die() -> None:
    store.set(f"dead/{turn}", str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


for turn, (victim, moment) in enumerate(DEATHS):
    if turn < first - 1:
        continue
    rest = [place for place in ALL if place != victim]
    if turn >= first:  # this process was there in the turn before
        if moment == "collective":
            pending = group.allreduce([torch.ones(200_000)]) if victim != RANK else None
            if pending is None:
                meet(f"{turn} pending", ALL)
                die()
            assert pending is not None
            meet(f"{turn} pending", ALL)
            raises(herring.PeerLostError, "", pending.wait)
            assert "COMM_ERROR" in str(group.get_error()), group.get_error()
        else:
            handles = exchange(group, f"{turn} before", ALL)
            if victim == RANK:
                die()
            store.get(f"dead/{turn}")
            raises(herring.TimeoutError, "may be dead", reconfigure, group, 10 + turn, handles, 1.0)
        reconfigure(group, 20 + turn, exchange(group, f"{turn} without", rest))
        require_sum(group, rest)
    # The test has started a new process for the place.
    reconfigure(group, 30 + turn, exchange(group, f"{turn} again", ALL))
    require_sum(group, ALL)
meet("end", ALL)
if HAS_FRONT:
    dist.destroy_process_group()
done()
