"""Trains a small Transformer on text with ranks that meet seldom, and counts what they send.

The text is Python's own documentation, which every installation has.
"""

from __future__ import annotations

import argparse
import hashlib
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

EPILOG = """\
examples:
  herring run -n 4 --nodes 2 -- python examples/diloco.py
      four workers on two emulated nodes, which meet after every 50 steps
  herring run -n 4 --nodes 2 -- python examples/diloco.py --wire-dtype fp8 --fragments 4 --delay 2
      the same with an eighth of the network for a quarter of the time
  herring run -n 4 --nodes 2 -- python examples/diloco.py --every 0
      gradients are averaged in each step instead
"""
WINDOW = 64  # characters that the model sees
WIDTH, HEADS, LAYERS = 64, 4, 2


class Block(nn.Module):
    """A layer of a Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.queries = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Returns the states after this layer, [batch, WINDOW, WIDTH]."""
        batch, length, _ = states.shape
        heads = self.queries(self.before(states)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.mix(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        change: torch.Tensor = self.narrow(F.gelu(self.wide(self.middle(states))))
        return states + change


class Model(nn.Module):
    """Predicts each next character of a text."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, WIDTH)
        self.places = nn.Parameter(torch.randn(WINDOW, WIDTH) / 10)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH))
        self.last = nn.Linear(WIDTH, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Returns the scores of all characters at each place, [batch, WINDOW, characters]."""
        scores: torch.Tensor = self.last(self.blocks(self.characters(text) + self.places))
        return scores


def load_text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns characters for training and for testing ([n] int64), and how many kinds there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    kinds = {character: kind for kind, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([kinds[character] for character in text])
    held_out = len(numbers) // 10
    return numbers[:-held_out], numbers[-held_out:], len(kinds)


def windows(text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns windows of the text and the characters that follow, as [len(starts), WINDOW]."""
    places = starts[:, None] + torch.arange(WINDOW)
    return text[places], text[places + 1]


def loss_of(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Returns the mean cross entropy of the next character, in nats."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())


def test_loss(model: nn.Module, text: torch.Tensor) -> float:
    """Returns the loss on 256 windows, which are spread over the text."""
    with torch.no_grad():
        starts = torch.linspace(0, len(text) - WINDOW - 1, 256).long()
        return loss_of(model, windows(text, starts)).item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=int, default=300, help="steps of each worker (default: 300)")
    add("--batch", type=int, default=8, help="windows per worker and step (default: 8)")
    add("--every", type=int, default=50, help="steps between two meetings; 0 averages gradients")
    add("--fragments", type=int, default=1, help="parts of the model that meet in turn")
    add("--delay", type=int, default=0, help="steps after which a meeting's result is used")
    add("--alpha", type=float, default=0.0, help="part of its own parameters that a rank keeps")
    add("--wire-dtype", help="bfloat16, fp8, fp8_e5m2 or int8")
    return parser.parse_args()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, options: argparse.Namespace) -> None:
    """The training loop, which knows of no meeting."""
    text, _, _ = load_text()
    draw = torch.Generator().manual_seed(herring.rank())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    for step in range(1, options.steps + 1):
        starts = torch.randint(len(text) - WINDOW, (options.batch,), generator=draw)
        optimizer.zero_grad()
        loss = loss_of(model, windows(text, starts))
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 and herring.rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)  # The workers share this machine's cores.
    herring.init()
    _, test, characters = load_text()
    torch.manual_seed(1)
    model = Model(characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    wire = options.wire_dtype
    if options.every:
        with herring.DiLoCo(
            model,
            optimizer,
            every=options.every,
            fragments=options.fragments,
            delay=options.delay,
            alpha=options.alpha,
            wire_dtype=wire,
        ) as diloco:
            train(model, optimizer, options)
        how = f"{diloco.meetings} meetings"
    else:
        train(herring.DistributedDataParallel(model, wire_dtype=wire), optimizer, options)
        how = "gradients averaged in each step"
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    same = len(set(herring.allgather_object(digest.hexdigest()))) == 1
    sent = sum(herring.allgather_object(herring.stats()["bytes_sent"])) / herring.num_nodes()
    if herring.rank() == 0:
        print(f"{options.steps} steps, {how}: test loss {test_loss(model, test):.3f}")
        print(f"a node has sent {sent / 1e6:.1f} MB")
        print(f"parameters of all ranks: {'bit-identical' if same else 'DIFFERENT'}")
    herring.shutdown()
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
