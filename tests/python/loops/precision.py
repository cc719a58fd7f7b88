"""Automatic mixed precision: scaled losses, and steps that are skipped."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import labelled, loop, mlp, state


def scaled(dist, model, wrapped, optimizer, *, clip: bool, steps: int = 10):
    """Trains with overflows, where all ranks must skip: step 3 on the last rank, step 6 on all."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    scales = []
    for step in range(steps):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(wrapped(inputs), labels)
        if step == 6 or (step == 3 and dist.rank == dist.size - 1):
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return state(model, scales=torch.tensor(scales))


@loop
def scaled_losses(dist):
    """Scaled losses with a fused optimizer, which unscales and skips steps itself."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    return scaled(dist, model, ddp, optimizer, clip=False)


@loop
def scaled_losses_clipped(dist):
    """Scaled losses whose gradients are unscaled before clipping."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True)
    return scaled(dist, model, ddp, optimizer, clip=True)


@loop
def scaled_losses_optimizer(dist):
    """Scaled losses with and without clipping, where the optimizer is wrapped, not the model."""
    results = {}
    for clip in (False, True):
        for fused in (False, True):
            model = mlp()
            inner = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=fused)
            wrapped, optimizer = dist.wrap_optimizer(model, inner)
            found = scaled(dist, model, wrapped, optimizer, clip=clip)
            results.update({f"{clip}.{fused}.{key}": value for key, value in found.items()})
    return results


@loop
def half_parameters(dist):
    """Trains a bfloat16 model; the optimizer updates float32 copies of its weights."""
    model = mlp().bfloat16()
    ddp = dist.wrap(model)
    masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1, momentum=0.9)
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        model.zero_grad()
        F.cross_entropy(ddp(inputs.bfloat16()).float(), labels).backward()
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters, model.parameters()):
                p.copy_(master)
    return state(model, **{f"master{i}": master for i, master in enumerate(masters)})
