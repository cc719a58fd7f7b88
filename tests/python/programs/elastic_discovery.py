"""Trains while the hosts that a script names change: one is added, and then the first one goes.

Arguments: the file with the hosts. It is read by the script.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import herring
import herring.elastic

slot, deadline = int(os.environ["HERRING_RANK"]), time.monotonic() + 600
state = herring.elastic.State(phase=0, seen=[])


def name(hosts: str) -> None:
    """Changes the hosts at once, on one rank."""
    if herring.rank() > 0:
        return
    whole = Path(f"{sys.argv[1]}.new")
    whole.write_text(hosts)
    whole.rename(sys.argv[1])


@herring.elastic.run
def train(state: herring.elastic.State) -> None:
    while True:
        assert time.monotonic() < deadline, (state.phase, state.seen)
        slots = sorted(herring.allgather_object(slot))
        if slots not in state.seen:
            state.seen = [*state.seen, slots]
        if state.phase == 0:
            name("localhost:1\nfar\n")
            state.phase = 1
        elif state.phase == 1 and len(slots) == 3:
            name("far\n")
            state.phase = 2
        elif state.phase == 2 and 0 not in slots:
            return
        state.commit()
        time.sleep(0.01)


train(state)
print(f"is done: {slot} of {herring.size()}, seen {state.seen}", flush=True)
