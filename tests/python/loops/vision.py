"""Image models: accumulation, siamese nets, distillation, compiling and checkpoints."""

from __future__ import annotations

import contextlib
import io

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint_sequential

from .support import labelled, loop, mlp, normal, state


def convolutional(width: int = 8, outputs: int = 4) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(9 * width, outputs),
    )


def images(step: int, rank: int, rows: int = 6):
    inputs = normal((rows, 1, 8, 8), step, rank)
    return inputs, inputs[:, 0, :4, :4].sum(2).argmax(1)


@loop
def accumulation(dist):
    """Accumulates micro-batches without synchronization; the epoch's last group is shorter."""
    model = convolutional()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)
    batches = 8
    for epoch in range(2):
        for index in range(batches):
            inputs, labels = images(10 * epoch + index, dist.rank)
            last = index % 3 == 2 or index == batches - 1
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = F.cross_entropy(ddp(inputs), labels, label_smoothing=0.1)
                (loss / 3).backward()
            if last:
                nn.utils.clip_grad_value_(model.parameters(), 0.05)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return state(model, buffers=dist.rank == 0)


@loop
def siamese(dist):
    """Two passes through the same BatchNorm before one backward pass."""
    model = convolutional(outputs=8)
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    for step in range(8):
        first, labels = images(step, dist.rank)
        second, others = images(step + 50, dist.rank)
        distances = F.pairwise_distance(ddp(first), ddp(second))
        same = (labels == others).float()
        loss = same * distances.square() + (1 - same) * F.relu(1 - distances).square()
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
    return state(model)


@loop
def triplets(dist):
    """Searches the hardest negatives without gradients, between passes with gradients."""
    model = convolutional(outputs=8)
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-3)
    for step in range(6):
        anchor = images(step, dist.rank)[0]
        a, p = ddp(anchor), ddp(anchor + 0.1 * normal(anchor.shape, step, dist.rank, 1))
        with torch.no_grad():
            candidates = ddp(images(step + 50, dist.rank)[0])
        hardest = torch.cdist(a.detach(), candidates).argmin(1)
        n = ddp(images(step + 50, dist.rank)[0][hardest])
        optimizer.zero_grad()
        F.triplet_margin_loss(a, p, n).backward()
        optimizer.step()
    return state(model, buffers=dist.rank == 0)


@loop
def distillation(dist):
    """A frozen teacher; a layer that translates its features learns with the student."""
    teacher = convolutional(width=16)
    torch.manual_seed(5)
    for p in teacher.parameters():
        nn.init.normal_(p, std=0.2)
    teacher.eval().requires_grad_(False)

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = convolutional()
            self.translate = nn.Conv2d(8, 16, 1)

        def forward(self, inputs):
            middle = self.net[:3](inputs)
            return self.net[3:](middle), self.translate(middle)

    model = Student()
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(8):
        inputs, labels = images(step, dist.rank)
        with torch.no_grad():
            hint = teacher[:3](inputs)
            soft = teacher[3:](hint)
        logits, translated = ddp(inputs)
        loss = F.cross_entropy(logits, labels) + F.mse_loss(translated, hint)
        loss = loss + 4 * F.kl_div(
            (logits / 2).log_softmax(1), (soft / 2).softmax(1), reduction="batchmean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return state(model)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 32)
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(32, 4)
        self.reentrant = reentrant

    def forward(self, x):
        x = checkpoint_sequential(self.body, 2, self.stem(x), use_reentrant=self.reentrant)
        return self.head(x)


def steps(dist, model, ddp, count: int = 8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(count):
        inputs, labels = labelled(step, dist.rank)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    return state(model)


@loop
def checkpointed(dist):
    """Trains a model with reentrant checkpoints."""
    model = Checkpointed(reentrant=True)
    return steps(dist, model, dist.wrap(model))


@loop
def checkpointed_compiled(dist):
    """Wraps a compiled module that has checkpoints."""
    torch.compiler.reset()
    model = Checkpointed(reentrant=False)
    return steps(dist, model, dist.wrap(torch.compile(model, backend="aot_eager")))


@loop
def compiled_wrapper(dist):
    """Compiles the wrapper around a module with buffers."""
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
    return steps(dist, model, torch.compile(dist.wrap(model), backend="aot_eager"))


@loop
def resumed(dist):
    """Rank 0 saves half-way; a new wrapper and optimizer load the checkpoint and continue."""
    saved = None
    for start in (0, 5):
        model = convolutional()
        if saved is not None and dist.rank == 0:
            saved.seek(0)
            checkpoint = torch.load(saved)
            model.load_state_dict(checkpoint["model"])
        ddp = dist.wrap(model)
        optimizer = torch.optim.Adam(ddp.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        if saved is not None:
            saved.seek(0)
            checkpoint = torch.load(saved)
            optimizer.load_state_dict(checkpoint["optimizer"])
            schedule.load_state_dict(checkpoint["schedule"])
        for step in range(start, start + 5):
            inputs, labels = images(step, dist.rank)
            optimizer.zero_grad()
            F.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
            schedule.step()
        saved = io.BytesIO()
        torch.save(
            {
                "model": ddp.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            },
            saved,
        )
        dist.close()
    return state(model)


@loop
def quasi_newton(dist):
    """LBFGS: the line search calls the closure as often as needed, based on the mean loss."""
    model = mlp(width=12)
    ddp = dist.wrap(model)
    optimizer = torch.optim.LBFGS(ddp.parameters(), max_iter=6, line_search_fn="strong_wolfe")
    for step in range(3):
        inputs, labels = labelled(step, dist.rank, rows=16)

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = F.cross_entropy(ddp(inputs), labels)
            loss.backward()
            return dist.allreduce(loss.detach().reshape(1)).div_(dist.size).squeeze()

        optimizer.step(closure)
    return state(model)
