"""Contrastive learning: every rank's embeddings are compared with those of all ranks."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import loop, mlp, normal, state


def gather_with_gradient(dist, tensor: torch.Tensor) -> torch.Tensor:
    """Gathers all ranks' rows; backward sums all ranks' gradients of this rank's rows."""

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, rows):
            ctx.rows = len(rows)
            return dist.allgather(rows)

        @staticmethod
        def backward(ctx, gradient):
            total = dist.allreduce(gradient.clone(memory_format=torch.contiguous_format))
            return total[dist.rank * ctx.rows :][: ctx.rows]

    return Gather.apply(tensor)


@loop
def contrastive(dist):
    """SimCLR: one batch has both views; the temperature-scaled loss is over all ranks' rows."""
    encoder = nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
    )
    model = nn.Sequential(encoder, nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    rows = 6
    for step in range(10):
        clean = normal((rows, 16), step, dist.rank)
        views = [clean + 0.2 * normal((rows, 16), step, dist.rank, view) for view in (1, 2)]
        first, second = F.normalize(ddp(torch.cat(views)), dim=1).chunk(2)
        everything = torch.cat([gather_with_gradient(dist, first), second])
        everything = torch.cat([everything[:-rows], gather_with_gradient(dist, second)])
        count = dist.size * rows
        similar = everything @ everything.t() / 0.2
        similar = similar.masked_fill(torch.eye(2 * count, dtype=torch.bool), -torch.inf)
        partner = torch.arange(2 * count).roll(count)
        optimizer.zero_grad()
        F.cross_entropy(similar, partner).backward()
        optimizer.step()
        schedule.step()
    return state(model)


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = mlp(outputs=8), mlp(outputs=8, inputs=12)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        image, text = self.image(images), self.text(texts)
        return F.normalize(image, dim=1), F.normalize(text, dim=1), self.scale.exp()


@loop
def language_image_pairs(dist):
    """CLIP with local loss compares each rank's rows with all columns; the scale is clamped."""
    model = TwoTowers()
    ddp = dist.wrap(model)
    gains = [p for p in model.parameters() if p.ndim < 2]
    weights = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": gains, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.2}],
        lr=2e-3,
        betas=(0.9, 0.98),
    )
    for step in range(8):
        inputs = normal((5, 16), step, dist.rank)
        image, text, scale = ddp(inputs, inputs[:, :12] + 0.1)
        images, texts = gather_with_gradient(dist, image), gather_with_gradient(dist, text)
        labels = torch.arange(5) + 5 * dist.rank
        loss = F.cross_entropy(scale * image @ texts.t(), labels)
        loss = (loss + F.cross_entropy(scale * text @ images.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.scale.clamp_(0, math.log(100))
    return state(model)


class MomentumContrast(nn.Module):
    """MoCo: buffers hold a queue of keys from a slowly moving copy of the encoder."""

    def __init__(self, dist, length: int = 32) -> None:
        super().__init__()
        self.dist = dist
        self.query = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.query.append(nn.Linear(32, 8))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(8, length), dim=0))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def keys(self, inputs):
        for slow, fast in zip(self.key.parameters(), self.query.parameters()):
            slow.mul_(0.9).add_(fast, alpha=0.1)
        # Rows are shuffled over the ranks, so that batch statistics do not leak which rows match.
        everyone = self.dist.allgather(inputs)
        shuffle = self.dist.broadcast(torch.randperm(len(everyone)))
        mine = shuffle.view(self.dist.size, -1)[self.dist.rank]
        keys = F.normalize(self.key(everyone[mine]), dim=1)
        keys = self.dist.allgather(keys)[shuffle.argsort()]
        return keys.view(self.dist.size, -1, keys.shape[1])[self.dist.rank]

    @torch.no_grad()
    def enqueue(self, keys):
        keys = self.dist.allgather(keys)
        place = int(self.place)
        self.queue[:, place : place + len(keys)] = keys.t()
        self.place[0] = (place + len(keys)) % self.queue.shape[1]

    def forward(self, first, second):
        queries = F.normalize(self.query(first), dim=1)
        keys = self.keys(second)
        positive = (queries * keys).sum(1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.clone()], dim=1) / 0.2
        self.enqueue(keys)
        return logits


@loop
def momentum_contrast(dist):
    model = MomentumContrast(dist)
    ddp = dist.wrap(model)
    optimizer = torch.optim.SGD(model.query.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        clean = normal((4, 16), step, dist.rank)
        logits = ddp(clean + 0.1, clean * 0.9)
        optimizer.zero_grad()
        F.cross_entropy(logits, torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()
    return state(model)
