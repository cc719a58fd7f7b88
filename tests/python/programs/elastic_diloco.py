"""Trains an elastic job whose ranks meet seldom, and checks that all ranks end equal.

Arguments: the folder of the job, the number of steps, and "SLOT STEP SIGNAL" where a worker sends
itself this signal.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import herring
import herring.elastic
import herring.torch as ht
from support import die_once

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
events = [(int(slot), int(step), name) for slot, step, name in map(str.split, sys.argv[3:])]
slot = int(os.environ["HERRING_RANK"])
torch.set_num_threads(1)
torch.manual_seed(slot)  # each worker begins with other parameters
model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
diloco = ht.DiLoCo(model, optimizer, every=6, fragments=2, delay=1, digest_every=1)
state = ht.State(model=model, optimizer=optimizer, meetings=diloco, losses=[])
started: list[int] = []


@herring.elastic.run
def train(state: ht.State) -> None:
    started.append(diloco.meetings)
    print(f"generation {herring.elastic.generation()}, {herring.size()} workers", flush=True)
    made = 0
    with diloco:
        while state.steps < steps or herring.size() < 3 or made < 15:
            made += 1
            torch.manual_seed(100 * state.steps + herring.rank())
            inputs = torch.randn(8, 10)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
            loss.backward()
            losses = [*state.losses, loss.item()]
            state.losses = losses[:6] + losses[6:][-6:]
            for event in events:
                if event[0] == slot and event[1] <= state.steps:
                    die_once(folder / f"event {event}", number=getattr(signal, event[2]))
            optimizer.step()
            state.commit()


train(state)
assert sorted(started) == started and started[-1] > 0, started
everyone = herring.allgather_object([one.tolist() for one in model.parameters()])
assert all(one == everyone[0] for one in everyone)
counts = herring.allgather_object([diloco.meetings, diloco.steps])
assert counts == [counts[0]] * herring.size() and diloco.steps == state.steps, counts
state_of_all = [part["parameters"] for part in diloco.state_dict()["fragments"]]
assert all(torch.equal(model.get_parameter(n), p) for part in state_of_all for n, p in part.items())
begin, end = state.losses[:6], state.losses[6:]
print(f"is done: {sum(end) < 0.8 * sum(begin)} after {len(started)} generations", flush=True)
