"""Averages of weights over time."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from .support import labelled, loop, normal, state


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))


@loop
def moving_average(dist):
    """A diffusion model samples from the moving average of its weights and buffers."""
    model = nn.Sequential(nn.Linear(17, 32), nn.BatchNorm1d(32), nn.SiLU(), nn.Linear(32, 16))
    ddp = dist.wrap(model)
    average = AveragedModel(
        ddp.module, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True
    ).requires_grad_(False)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    for step in range(10):
        clean = normal((8, 16), step, dist.rank).sign()
        times = normal((8, 1), step, dist.rank, 1).sigmoid()
        noise = normal((8, 16), step, dist.rank, 2)
        noisy = times.sqrt() * noise + (1 - times).sqrt() * clean
        optimizer.zero_grad()
        F.mse_loss(ddp(torch.cat([noisy, times], 1)), noise).backward()
        optimizer.step()
        average.update_parameters(ddp.module)
    average.eval()
    sample = average(torch.cat([normal((8, 16), 99), torch.ones(8, 1)], 1))
    return state(model, average, sample=sample)


@loop
def average_of_wrapper(dist):
    """Stochastic weight averaging: the average is a copy of the wrapper itself."""
    model = normed()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    average = AveragedModel(ddp)
    schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
    batches = [labelled(step, dist.rank) for step in range(10)]
    for step, (inputs, labels) in enumerate(batches):
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
        if step >= 4:
            average.update_parameters(ddp)
            schedule.step()
    with torch.no_grad():
        update_bn(batches, average)
    return state(model, average)


@loop
def own_teacher(dist):
    """BYOL: two views, two passes through the online network, targets from its moving average."""
    online = nn.Sequential(normed(), nn.Linear(4, 4))
    ddp = dist.wrap(online)
    target = copy.deepcopy(ddp.module[0]).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=3e-3)
    for step in range(8):
        clean = normal((8, 16), step, dist.rank)
        views = torch.cat([clean + 0.2 * normal((8, 16), step, dist.rank, i) for i in (1, 2)])
        with torch.no_grad():
            wanted = torch.cat(target(views).chunk(2)[::-1])
        optimizer.zero_grad()
        (2 - 2 * F.cosine_similarity(ddp(views), wanted).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(online[0].parameters()), 0.05)
    return state(online, target)
