"""Changing graphs: different layers in each step, layers that thaw, ranks that run out of data."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import inexact, integers, labelled, loop, mlp, state


class Layers(nn.Module):
    def __init__(self, count: int = 5, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.exits = nn.ModuleList(nn.Linear(width, 4) for _ in range(count))

    def forward(self, x, depth, dropped=()):
        for index in range(depth):
            if index not in dropped:
                x = x + torch.tanh(self.layers[index](x))
        return self.exits[depth - 1](x)


def learn(dist, optimizer_type, *, set_to_none: bool, **options):
    """Trains layers whose depth grows over time and varies with the rank; layers are dropped."""
    model = Layers()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = optimizer_type(model.parameters(), **options)
    for step in range(12):
        inputs, labels = labelled(step, dist.rank)
        reached = 1 + step // 3
        depth = 1 + (reached - 1 + dist.rank) % reached if step % 2 else reached
        dropped = [i for i, flag in enumerate(integers(4, (5,), step, dist.rank)) if not flag]
        optimizer.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(ddp(inputs, depth, dropped), labels).backward()
        optimizer.step()
    return state(model)


@loop
def curriculum(dist):
    """Parameters that no rank uses have no gradient, so momentum and decay do not change them."""
    return learn(dist, torch.optim.AdamW, set_to_none=True, lr=5e-3, weight_decay=0.1)


@loop
def curriculum_with_zeros(dist):
    """Parameters that no rank uses have zero gradients, so momentum and decay change them."""
    return learn(dist, torch.optim.SGD, set_to_none=False, lr=0.1, momentum=0.9, weight_decay=0.01)


@loop
def curriculum_accumulated(dist):
    """Accumulates micro-batches of different depths locally; no micro-batch uses some layers."""
    model = Layers()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(3):
            inputs, labels = labelled(10 * step + micro, dist.rank)
            depth = 1 + int(integers(3, (1,), step, dist.rank, micro)) + step // 3
            if micro < 2:
                with ddp.no_sync():
                    (F.cross_entropy(ddp(inputs, depth), labels) / 3).backward()
            else:
                (F.cross_entropy(ddp(inputs, depth), labels) / 3).backward()
        optimizer.step()
    return state(model)


@loop
def mixture_of_experts(dist):
    """Top-1 routing: a rank's data decide which experts it uses; a loss balances the experts."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = nn.Linear(16, 6)
            self.experts = nn.ModuleList(mlp(width=16, outputs=16) for _ in range(6))
            self.head = nn.Linear(16, 4)
            self.register_buffer("load", torch.zeros(6))

        def forward(self, x):
            shares = self.router(x).softmax(1)
            weight, chosen = shares.max(1)
            mixed = torch.zeros_like(x)
            for index in chosen.unique().tolist():
                rows = (chosen == index).nonzero().squeeze(1)
                mixed = mixed.index_add(0, rows, weight[rows, None] * self.experts[index](x[rows]))
            counts = torch.bincount(chosen, minlength=6) / len(x)
            if self.training:
                self.load.lerp_(counts, 0.1)
            return self.head(x + mixed), 6 * (counts * shares.mean(0)).sum()

    model = Experts()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank, rows=6)
        logits, balance = ddp(inputs)
        optimizer.zero_grad()
        (F.cross_entropy(logits, labels) + 0.01 * balance).backward()
        optimizer.step()
    return state(model)


@loop
def unfreezing(dist):
    """Wraps the whole model, freezes everything except the head, and thaws layers from the top."""
    model = nn.Sequential(mlp(outputs=16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    ddp = dist.wrap(model, find_unused_parameters=True)
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model[2].parameters(), lr=1e-2)
    optimizer.add_param_group({"params": model[1].parameters(), "weight_decay": 0.0})
    for epoch, layer in enumerate([None, 4, 2, 0]):
        if layer is not None:
            model[0][layer].requires_grad_(True)
            optimizer.add_param_group(
                {"params": model[0][layer].parameters(), "lr": 1e-2 / 2**epoch}
            )
        for step in range(3):
            inputs, labels = labelled(10 * epoch + step, dist.rank)
            optimizer.zero_grad()
            F.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
    return state(model)


@loop
def unfreezing_after(dist):
    """Layers are frozen when the averaging optimizer is created, and thaw later.

    torch's DDP ignores parameters that are frozen at its creation, so it wraps the model anew.
    """
    model = mlp()
    model[0].requires_grad_(False)
    wrapped, optimizer = dist.wrap_optimizer(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    for step in range(10):
        inputs, labels = labelled(step, dist.rank)
        if step == 4:
            model[0].requires_grad_(True)
            wrapped = dist.thawed(wrapped)
        optimizer.zero_grad()
        F.cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
    return state(model)


@loop
@inexact
def uneven_data(dist):
    """Ranks have 5, 8, 5, 8 ... batches; a rank without batches stays but contributes nothing."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dist.join(ddp):
        for step in range(8 if dist.rank % 2 else 5):
            inputs, labels = labelled(step, dist.rank)
            optimizer.zero_grad()
            F.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
    return state(model)
