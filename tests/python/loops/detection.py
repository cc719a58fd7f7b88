"""Object detection as in DETR: ranks have different numbers of boxes, and some have none."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .support import integers, loop, normal, state

QUERIES = 6


class Detector(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.queries = nn.Embedding(QUERIES, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.labels = nn.Linear(16, classes + 1)
        self.boxes = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid())

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.backbone(images).flatten(2).transpose(1, 2)
        queries = self.queries.weight.expand(len(images), -1, -1)
        found, _ = self.attention(queries, features, features, need_weights=False)
        return {"logits": self.labels(found), "boxes": self.boxes(found)}


def match(output: dict, targets: list[dict]) -> list[torch.Tensor]:
    """Assigns a query to each box of each image, greedily."""
    chosen = []
    with torch.no_grad():
        for logits, boxes, target in zip(output["logits"], output["boxes"], targets):
            cost = torch.cdist(boxes, target["boxes"], p=1)
            cost = cost - logits.softmax(-1)[:, target["labels"]]
            taken = []
            for column in cost.unbind(1):
                column = column.clone()
                column[taken] = torch.inf
                taken.append(int(column.argmin()))
            chosen.append(torch.tensor(taken, dtype=torch.long))
    return chosen


def images_and_targets(step: int, rank: int):
    targets = []
    for image in range(2):
        # Rank 1 has no boxes in steps 1, 4, ...; no rank has boxes in step 5.
        count = int(integers(4, (1,), step, rank, image)) + rank
        if step == 5 or (rank == 1 and step % 3 == 1):
            count = 0
        count = min(count, QUERIES)
        targets.append(
            {
                "labels": integers(3, (count,), step, rank, image, 1),
                "boxes": normal((count, 4), step, rank, image, 2).sigmoid(),
            }
        )
    return normal((2, 3, 16, 16), step, rank), targets


def losses_of(output: dict, targets: list[dict], boxes: torch.Tensor) -> dict[str, torch.Tensor]:
    chosen = match(output, targets)
    wanted = torch.full(output["logits"].shape[:2], 3)
    for row, (queries, target) in enumerate(zip(chosen, targets)):
        wanted[row, queries] = target["labels"]
    found = torch.cat([row[queries] for row, queries in zip(output["boxes"], chosen)])
    true = torch.cat([target["boxes"] for target in targets])
    return {
        "labels": F.cross_entropy(output["logits"].flatten(0, 1), wanted.flatten()),
        "boxes": F.l1_loss(found, true, reduction="sum") / boxes,
    }


@loop
def detection(dist):
    """Divides the box loss by the mean number of boxes over all ranks, and logs losses."""
    model = Detector()
    ddp = dist.wrap(model)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if "backbone" not in n]},
            {"params": model.backbone.parameters(), "lr": 1e-3},
        ],
        lr=3e-3,
    )
    logged = []
    for step in range(8):
        images, targets = images_and_targets(step, dist.rank)
        output = ddp(images)
        boxes = torch.tensor([float(sum(len(target["boxes"]) for target in targets))])
        dist.allreduce(boxes)
        losses = losses_of(output, targets, (boxes / dist.size).clamp(min=1).squeeze())
        with torch.no_grad():
            stacked = torch.stack([losses[key] for key in sorted(losses)])
            logged.append(dist.allreduce(stacked) / dist.size)
        optimizer.zero_grad()
        (losses["labels"] + 5 * losses["boxes"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return state(model, logged=torch.stack(logged))


@loop
def detection_without_boxes(dist):
    """A rank without boxes does not use the box head, so ranks have different losses."""
    model = Detector()
    ddp = dist.wrap(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3)
    for step in range(8):
        images, targets = images_and_targets(step, dist.rank)
        output = ddp(images)
        logits, boxes = output["logits"], output["boxes"]
        losses = []
        for row, (queries, target) in enumerate(zip(match(output, targets), targets)):
            if len(queries):
                losses.append(F.cross_entropy(logits[row, queries], target["labels"]))
                losses.append(F.smooth_l1_loss(boxes[row, queries], target["boxes"]))
        losses.append(0.1 * logits[..., -1].mean())
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
    return state(model)
