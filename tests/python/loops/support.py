"""What the loops share: the list of loops, data, small models, and results."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

LOOPS: dict[str, Any] = {}


def loop(function):
    """Adds a function to the list of loops.

    The function takes a `Library` and returns named tensors that must equal those with torch.
    Before each call, torch's generators are seeded, with a different seed on each rank.
    """
    LOOPS[function.__name__] = function
    return function


def inexact(function):
    """Marks a loop whose results are equal only up to rounding."""
    function.inexact = True
    return function


def generator(*key: int) -> torch.Generator:
    """Returns a random generator seeded by the key, for example a step and a rank."""
    seed = 0
    for part in key:
        seed = 1009 * seed + part + 1
    return torch.Generator().manual_seed(seed)


def normal(shape: tuple[int, ...], *key: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator(*key))


def integers(bound: int, shape: tuple[int, ...], *key: int) -> torch.Tensor:
    return torch.randint(0, bound, shape, generator=generator(*key))


def labelled(step: int, rank: int, rows: int = 8, classes: int = 4):
    """Returns a classification batch: inputs [rows, 16], and labels [rows] that depend on them."""
    inputs = normal((rows, 16), step, rank)
    return inputs, (inputs[:, :classes] + 0.3 * inputs[:, -classes:]).argmax(1)


def mlp(width: int = 32, outputs: int = 4, inputs: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.Tanh(),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, outputs),
    )


class Block(nn.Module):
    """A layer of a causal transformer."""

    def __init__(self, width: int = 16, heads: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        normed = self.norm1(x)
        q, k, v = (
            part(normed).view(rows, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(rows, length, width)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


def state(
    *modules: nn.Module, buffers: bool = True, **named: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Returns copies of the modules' parameters and buffers, and of other tensors.

    Pass `buffers=False` on ranks other than 0 if the loop has forward passes under `no_sync` or
    `no_grad`. After such passes, torch sends rank 0's buffers at other times than Herring.
    """
    found = dict(named)
    for index, module in enumerate(modules):
        entries = list(module.named_parameters())
        if buffers:
            entries += module.named_buffers()
        found.update({f"{index}.{key}": tensor for key, tensor in entries})
    return {key: tensor.detach().clone() for key, tensor in found.items()}
