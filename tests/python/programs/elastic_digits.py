"""Trains a model in an elastic job, and repeats the training alone from what the steps were.

Arguments: the folder of the job, the number of epochs, and "SLOT STEP SIGNAL" where a worker sends
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

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
events = [(int(slot), int(step), name) for slot, step, name in map(str.split, sys.argv[3:])]
slot = int(os.environ["HERRING_RANK"])
BATCH, LENGTH = 8, 403  # which no number of workers divides
device = os.environ.get("DEVICE", "cpu")


def build(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    model.double().to(device)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


draw = torch.Generator().manual_seed(1)
inputs = torch.randn(LENGTH, 10, generator=draw, dtype=torch.float64)
labels = torch.randint(0, 3, (LENGTH,), generator=draw)
data = torch.utils.data.TensorDataset(inputs, labels, torch.arange(LENGTH))
loss_of = torch.nn.CrossEntropyLoss()

model, optimizer = build(seed=slot)  # each worker begins with other parameters
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
sampler = ht.ElasticSampler(data, BATCH, seed=3)
kept: list[torch.nn.Module] = []
initial = [parameter.detach().clone() for parameter in model.parameters()]
state = ht.State(
    model=model, optimizer=optimizer, schedule=schedule, sampler=sampler, epoch=0, history=[]
)


def remember() -> None:
    if herring.elastic.generation() == 1:
        initial[:] = [parameter.detach().clone() for parameter in model.parameters()]


state.on_generation(remember)


def die() -> None:
    for event in events:
        if event[0] == slot and event[1] <= state.steps:
            die_once(folder / f"event {event}", number=getattr(signal, event[2]))


@herring.elastic.run
def train(state: ht.State) -> None:
    print(f"generation {herring.elastic.generation()}, {herring.size()} workers", flush=True)
    # A program may keep wrappers of earlier generations, and need none where it is alone.
    wrapped = ht.DistributedDataParallel(model) if herring.size() > 1 else model
    kept.append(wrapped)
    loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler)
    while state.epoch < epochs:
        sampler.set_epoch(state.epoch)
        for x, y, indices in loader:
            optimizer.zero_grad()
            loss_of(wrapped(x.to(device)), y.to(device)).backward()
            die()
            batches = herring.allgather_object(indices.tolist())
            state.history = [*state.history, (state.epoch, batches)]
            optimizer.step()
            state.commit()
        schedule.step()
        state.epoch += 1


train(state)
everyone = herring.allgather_object([one.tolist() for one in model.parameters()])
assert all(one == everyone[0] for one in everyone)
assert len(state.history) == state.steps
used: dict[int, set[int]] = {}
for epoch, batches in state.history:
    used.setdefault(epoch, set()).update(index for batch in batches for index in batch)
assert all(used[epoch] == set(range(LENGTH)) for epoch in range(epochs)), "a sample is missing"

alone, its_optimizer = build(0)
its_schedule = torch.optim.lr_scheduler.ExponentialLR(its_optimizer, 0.9)
for parameter, value in zip(alone.parameters(), initial):
    parameter.data.copy_(value)
inputs, labels, last = inputs.to(device), labels.to(device), 0
for epoch, batches in state.history:
    if epoch != last:
        its_schedule.step()
        last = epoch
    its_optimizer.zero_grad()
    sum(loss_of(alone(inputs[batch]), labels[batch]) / len(batches) for batch in batches).backward()
    its_optimizer.step()
same = all(
    torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    for one, other in zip(model.parameters(), alone.parameters())
)
sizes = sorted({len(batches) for _, batches in state.history})
print(f"is done: {same if slot not in [one[0] for one in events] else 'came later'} {sizes}")
