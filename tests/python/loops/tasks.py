"""Several tasks in one model; the loops inspect the gradients of each task."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import labelled, loop, mlp, normal, state


class Tasks(nn.Module):
    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.trunk = nn.Sequential(mlp(outputs=16), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(16, 1 + task) for task in range(count))

    def forward(self, inputs, tasks):
        features = self.trunk(inputs)
        return [self.heads[task](features) for task in tasks]


def task_loss(task: int, output: torch.Tensor, step: int, rank: int) -> torch.Tensor:
    target = normal((8, 1 + task), step, rank, task).cumsum(0)
    return F.mse_loss(output, (-1) ** task * target)


@loop
def gradient_surgery(dist):
    """PCGrad keeps each task's gradients, makes conflicting ones orthogonal, and sums them."""
    model = Tasks()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    parameters = list(model.parameters())
    for step in range(8):
        inputs, _ = labelled(step, dist.rank)
        kept = []
        for task in range(3):
            optimizer.zero_grad()
            task_loss(task, ddp(inputs, [task])[0], step, dist.rank).backward()
            kept.append([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
        flat = [torch.cat([g.flatten() for g in gradients]) for gradients in kept]
        total = torch.zeros_like(flat[0])
        for mine, grads in enumerate(flat):
            grads = grads.clone()
            for other in range(3):
                dot = grads.dot(flat[other])
                if other != mine and dot < 0:
                    grads -= dot / flat[other].square().sum() * flat[other]
            total += grads
        for p, piece in zip(parameters, total.split([p.numel() for p in parameters])):
            p.grad = piece.view_as(p)
        optimizer.step()
    return state(model)


@loop
def gradient_norms(dist):
    """GradNorm learns the weights of losses from the gradient norms at the shared layer."""
    model = Tasks()
    ddp = dist.wrap(model)
    weights = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    weights_optimizer = torch.optim.Adam([weights], lr=0.025)
    shared = model.trunk[0][4].weight
    first = None
    for step in range(8):
        inputs, _ = labelled(step, dist.rank)
        outputs = ddp(inputs, [0, 1, 2])
        losses = torch.stack(
            [task_loss(task, output, step, dist.rank) for task, output in enumerate(outputs)]
        )
        first = losses.detach() if first is None else first
        norms = []
        for weighted in (weights * losses).unbind():
            (slopes,) = torch.autograd.grad(weighted, shared, retain_graph=True, create_graph=True)
            norms.append(slopes.norm())
        norms = torch.stack(norms)
        rate = losses.detach() / first
        wanted = (norms.mean() * (rate / rate.mean()).sqrt()).detach()
        weights_optimizer.zero_grad()
        unbalanced = (norms - wanted).abs().sum()
        (weights.grad,) = torch.autograd.grad(unbalanced, weights, retain_graph=True)
        dist.allreduce(weights.grad).div_(dist.size)
        optimizer.zero_grad()
        (weights.detach() * losses).sum().backward()
        optimizer.step()
        weights_optimizer.step()
        with torch.no_grad():
            weights.mul_(3 / weights.sum())
    return state(model, weights=weights)


@loop
def gradients_per_loss(dist):
    """Keeps the gradients of each single loss and compares them over several steps."""
    model = Tasks()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    watched = model.trunk[0][0].weight
    history, cosines = [], []
    for step in range(9):
        inputs, _ = labelled(step, dist.rank)
        optimizer.zero_grad()
        task_loss(step % 3, ddp(inputs, [step % 3])[0], step, dist.rank).backward()
        history.append(watched.grad)
        optimizer.step()
        cosines.extend(F.cosine_similarity(history[-1], old, dim=1).mean() for old in history[-3:])
    return state(model, history=torch.stack(history), cosines=torch.stack(cosines))
