"""Sharpness-aware minimization (SAM): two backward passes per step."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

from .support import labelled, loop, mlp, state


class SAM(torch.optim.Optimizer):
    """The widely copied implementation of SAM."""

    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.stack(
            [p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]
        ).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old"]
        self.base.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


@loop
def sharpness(dist):
    """Both passes are averaged; in every other step, a closure runs the second pass."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = SAM(ddp.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)

        def closure(inputs=inputs, labels=labels):
            loss = F.cross_entropy(ddp(inputs), labels)
            loss.backward()
            return loss

        closure()
        if step % 2:
            optimizer.step(closure)
            optimizer.zero_grad()
        else:
            optimizer.first_step(zero_grad=True)
            closure()
            optimizer.second_step(zero_grad=True)
    return state(model)


@loop
def sharpness_per_rank(dist):
    """Each rank climbs by its own gradient without synchronization, as SAM's authors advise."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = SAM(ddp.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        with ddp.no_sync():
            F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.second_step(zero_grad=True)
    return state(model)


@loop
def sharpness_averaging(dist):
    """SAM inside an averaging optimizer, whose closure runs the second pass."""
    model = mlp()
    wrapped, optimizer = dist.wrap_optimizer(
        model, SAM(model.parameters(), torch.optim.SGD, rho=0.1, lr=0.1, momentum=0.9)
    )
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)

        def closure(inputs=inputs, labels=labels):
            loss = F.cross_entropy(wrapped(inputs), labels)
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)
        optimizer.zero_grad()
    return state(model)
