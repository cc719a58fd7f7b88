"""Trains with stock DistributedDataParallel; a member dies in a backward pass, the others go on."""

import os
import signal

import torch
from torch.nn.parallel import DistributedDataParallel

from reconfigure_support import (
    RANK,
    SIZE,
    begin,
    dist,
    done,
    exchange,
    meet,
    reconfigure,
    store,
)

ALL, VICTIM, KILLED_AT, STEPS = list(range(SIZE)), 0, 3, 8

group = begin()
reconfigure(group, 1, exchange(group, "begin", ALL))
model = torch.nn.Linear(3, 1, bias=False)
wrapped = DistributedDataParallel(model)
rest, places, step = [place for place in ALL if place != VICTIM], ALL, 0
while step < STEPS:
    model.zero_grad()
    try:
        # The gradient is the input, so the average says which ranks took part.
        loss = wrapped(torch.full((1, 3), 6.0 * 2**RANK)).sum()
        if step == KILLED_AT and places == ALL:
            meet("no member is inside the step before", ALL)
        if (RANK, step) == (VICTIM, KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
    except RuntimeError as error:
        assert "PeerLostError" in str(error) or "rank 0" in str(error), error
        assert step == KILLED_AT and places == ALL, (step, error)
        places = rest
        reconfigure(group, 2, exchange(group, "go on", places))
        wrapped = DistributedDataParallel(model)
        continue
    expected = sum(6.0 * 2**place for place in places) / len(places)
    assert bool((model.weight.grad == expected).all()), (step, model.weight.grad, expected)
    with torch.no_grad():
        model.weight -= 0.1 * model.weight.grad
    step += 1
store.set(f"weight/{RANK}", str(model.weight.tolist()))
assert len({store.get(f"weight/{place}") for place in rest}) == 1
meet("end", rest)
dist.destroy_process_group()
done()
