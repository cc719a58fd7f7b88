"""The routine around a step: loaders, schedules, metrics, checkpoints, optimizers that average."""

from __future__ import annotations

import contextlib
import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from .support import labelled, loop, mlp, normal, state

_loaders: list[DataLoader] = []


def fork_loaders(rank: int, size: int) -> None:
    """Forks the workers of the loaders of `loaded`, before torch's threads take Python's locks.

    Python 3.11 hangs in a forked child if a thread of C++ made its state at that moment.
    """
    inputs = normal((48, 16), 1)
    data = TensorDataset(inputs, inputs[:, :4].argmax(1))
    for _ in range(3):  # with torch's wrapper, with none, with Herring's
        sampler = DistributedSampler(data, size, rank, seed=3)
        _loaders.append(
            DataLoader(data, 4, sampler=sampler, num_workers=1, persistent_workers=True)
        )
        iter(_loaders[-1])


@loop
def loaded(dist):
    """A loader with a worker process, validation with reduced metrics, and the best weights."""
    loader = _loaders.pop()
    sampler = loader.sampler
    model = nn.Sequential(mlp(outputs=8), nn.Dropout(0.1), nn.Linear(8, 4))
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    best, losses = None, []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        ddp.train()
        for batch, labels in loader:
            loss = F.cross_entropy(ddp(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ddp.eval()
        with torch.no_grad():
            batch, labels = labelled(epoch + 70, dist.rank)
            loss = F.cross_entropy(ddp(batch), labels).reshape(1)
        losses.append(dist.allreduce(loss).item() / dist.size)
        schedule.step(losses[-1])
        if losses[-1] == min(losses):
            best = copy.deepcopy(ddp.module.state_dict())
    del loader
    return state(model, losses=torch.tensor(losses), best=best["2.weight"])


@loop
def late_metrics(dist):
    """Losses are reduced while the next step runs, and read after that step."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3)
    pending, shown = None, []
    for step in range(10):
        inputs, labels = labelled(step, dist.rank)
        loss = F.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        if pending is not None:
            shown.append(pending().clone())
        pending = dist.allreduce_later(loss.detach().reshape(1))
        optimizer.step()
    shown.append(pending())
    return state(model, shown=torch.stack(shown))


@loop
def averaging_optimizer(dist):
    """A one-cycle schedule (which also changes the momentum), clipping, accumulation, and hooks."""
    model = nn.Sequential(mlp(outputs=16), nn.LayerNorm(16), nn.Linear(16, 4))
    norms, called = [], []
    wrapped, optimizer = dist.wrap_optimizer(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=6)
    optimizer.register_step_post_hook(lambda *_: called.append(1.0))
    for step in range(6):
        for micro in range(3):
            inputs, labels = labelled(10 * step + micro, dist.rank)
            quiet = dist.no_sync(wrapped, optimizer) if micro < 2 else contextlib.nullcontext()
            with quiet:
                (F.cross_entropy(wrapped(inputs), labels) / 3).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    rates = [group["lr"] for group in optimizer.param_groups]
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    return state(
        model,
        norms=torch.stack(norms),
        rates=torch.tensor([*rates, len(called)]),
        momenta=torch.cat([m.flatten() for m in momenta]),
    )


@loop
def averaging_optimizer_resumed(dist):
    """Loads an averaging optimizer's saved state into a new one with more frozen parameters."""
    saved = None
    for start in (0, 4):
        model = mlp()
        inner = torch.optim.AdamW(model.parameters(), lr=5e-3)
        if saved is not None:
            model.load_state_dict(saved["model"])
            model[0].requires_grad_(False)
        wrapped, optimizer = dist.wrap_optimizer(model, inner)
        if saved is not None:
            optimizer.load_state_dict(saved["optimizer"])
        for step in range(start, start + 4):
            inputs, labels = labelled(step, dist.rank)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            F.cross_entropy(wrapped(inputs), labels).backward()
            optimizer.step()
        saved = {
            "model": copy.deepcopy(model.state_dict()),
            "optimizer": copy.deepcopy(optimizer.state_dict()),
        }
        dist.close()
    return state(model)


@loop
def averaging_optimizers_in_turn(dist):
    """Two averaging optimizers for body and head of one model; the body skips some steps."""
    model = nn.ModuleDict({"body": mlp(outputs=16), "head": nn.Linear(16, 4)})

    class Both(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, *inputs):
            return self.part(*inputs)

    body, head = Both(model["body"]), Both(model["head"])
    low, low_optimizer = dist.wrap_optimizer(body, torch.optim.Adam(body.parameters(), lr=5e-3))
    top, top_optimizer = dist.wrap_optimizer(head, torch.optim.SGD(head.parameters(), lr=0.1))
    for step in range(8):
        inputs, labels = labelled(step, dist.rank)
        low_optimizer.zero_grad()
        top_optimizer.zero_grad()
        features = low(inputs)
        if step % 3 == 2:
            features = features.detach()
        F.cross_entropy(top(torch.tanh(features)), labels).backward()
        top_optimizer.step()
        if step % 3 != 2:
            low_optimizer.step()
    return state(model)


@loop
def averaging_quasi_newton(dist):
    """LBFGS inside an averaging optimizer: the closure runs backward passes during its step."""
    model = mlp(width=12)
    wrapped, optimizer = dist.wrap_optimizer(
        model, torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
    )
    for step in range(3):
        inputs, labels = labelled(step, dist.rank, rows=16)

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(wrapped(inputs), labels)
            loss.backward()
            return dist.allreduce(loss.detach().reshape(1)).div_(dist.size).squeeze()

        optimizer.step(closure)
    return state(model)


@loop
def folds(dist):
    """Cross-validation trains several models in turn in one process, each with a new wrapper."""
    result = {}
    for fold in range(3):
        model = mlp(width=16 + 8 * fold)
        ddp = dist.wrap(model)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=5e-3)
        for step in range(4):
            inputs, labels = labelled(10 * fold + step, dist.rank)
            optimizer.zero_grad()
            F.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
        result.update({f"fold{fold}.{key}": value for key, value in state(model).items()})
        if fold == 1:
            dist.close()
    return result


@loop
def empty_batches(dist):
    """A rank with no rows in a step takes part with a loss of zero."""
    model = mlp()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(8):
        rows = (step * (dist.rank + 1)) % 4
        inputs, labels = labelled(step, dist.rank, rows=8)
        total = dist.allreduce(torch.tensor([float(rows)])).clamp(min=1)
        optimizer.zero_grad()
        outputs = ddp(inputs[:rows])
        # The gradient is the mean over all rows of all ranks, however many rows each rank has.
        loss = F.cross_entropy(outputs, labels[:rows], reduction="sum")
        (loss * dist.size / total.squeeze()).backward()
        optimizer.step()
    return state(model)


@loop
def skipped_steps(dist):
    """A large loss skips backward on all ranks; a large gradient norm skips the step."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.9)
    skipped = []
    for step in range(12):
        inputs, labels = labelled(step, dist.rank)
        loss = F.cross_entropy((1 + step % 5) * ddp(inputs), labels)
        mean = dist.allreduce(loss.detach().reshape(1)) / dist.size
        optimizer.zero_grad()
        if mean > 2.2:
            skipped.append(1)
            continue
        loss.backward()
        if nn.utils.clip_grad_norm_(ddp.parameters(), 1.0) > 2.8:
            skipped.append(2)
            continue
        optimizer.step()
        skipped.append(0)
    return state(model, skipped=torch.tensor(skipped, dtype=torch.float32))


@loop
def averaging_optimizer_repeated(dist):
    """Runs several backward passes before a step, and averages each."""
    model = mlp()
    wrapped, optimizer = dist.wrap_optimizer(
        model, torch.optim.Adam(model.parameters(), lr=5e-3), find_unused_parameters=True
    )
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(1 + step % 3):
            inputs, labels = labelled(10 * step + micro, dist.rank)
            F.cross_entropy(wrapped(inputs), labels).backward()
        optimizer.step()
    return state(model)
