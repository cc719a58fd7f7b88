"""Trains a small BERT as Herring's paper trains its large one (section IV.C).

Nine tenths of the steps see sequences of 128 pieces of words, and the last tenth sequences of 512
in batches a quarter as large. All pieces of a word are masked together. The optimizer is LAMB. In
both phases the learning rate rises from zero, and then falls as a square root. Gradients travel in
16 bits. The text is Python's own documentation, which every installation has.

Other than in the paper, the model does not judge whether two sentences belong together.

Needs `pip install tokenizers pytorch_optimizer`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import torch
from pytorch_optimizer import Lamb
from tokenizers import BertWordPieceTokenizer, Tokenizer
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

EPILOG = """\
examples:
  herring run -n 4 --nodes 2 -- python examples/bert.py
      four workers on two emulated nodes
  herring run -n 1 -- python examples/bert.py --vocabulary v.json --record one.json
  herring run -n 4 --nodes 2 -- python examples/bert.py --vocabulary v.json --record four.json
      the same batches on one worker and on four: losses differ by rounding only
  herring run -n 4 -- python examples/bert.py --batch 128 --steps 75 --rate 0.017
      a batch four times as large, and as many epochs
"""
PIECES = 4000  # kinds of pieces of words
WIDTH, HEADS, LAYERS = 128, 4, 2
MASKED = 0.15  # the part of the words that the model must find


class Batch(NamedTuple):
    """Sequences whose masked pieces the model must find."""

    pieces: torch.Tensor  # what the model sees, [batch, length] int64
    places: torch.Tensor  # of masked pieces, [batch, length] bool
    masked: torch.Tensor  # the pieces that stood there, [masked] int64


class Model(nn.Module):
    """Finds the masked pieces of sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.Embedding(PIECES, WIDTH)
        self.places = nn.Embedding(512, WIDTH)
        self.first = nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS)
        self.last = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
        self.bias = nn.Parameter(torch.zeros(PIECES))
        for each in (self.pieces, self.places):
            nn.init.normal_(each.weight, std=0.02)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Returns the sum of the cross entropies of the masked pieces, in nats."""
        places = torch.arange(batch.pieces.shape[1])
        states = self.layers(self.first(self.pieces(batch.pieces) + self.places(places)))
        scores = F.linear(self.last(states[batch.places]), self.pieces.weight, self.bias)
        loss: torch.Tensor = F.cross_entropy(scores, batch.masked, reduction="sum")
        return loss


def agreed_tokenizer(pages: list[str], path: Path | None) -> str:
    """Returns rank 0's tokenizer, as JSON: tokenizers of the same text differ in a few pieces."""
    found = ""
    if herring.rank() == 0:
        if path is not None and path.exists():
            found = path.read_text()
        else:
            tokenizer = BertWordPieceTokenizer()
            tokenizer.train_from_iterator(pages, PIECES, show_progress=False)
            found = tokenizer.to_str()
            if path is not None:
                path.write_text(found)
    return str(herring.broadcast_object(found))


class Text:
    """A text as pieces of words, of which batches are made."""

    def __init__(self, vocabulary: Path | None) -> None:
        pages = [topics[name] for name in sorted(topics)]
        tokenizer = Tokenizer.from_str(agreed_tokenizer(pages, vocabulary))
        kinds = tokenizer.get_vocab()
        self.ends = [kinds["[CLS]"], kinds["[SEP]"]]
        self.mask = kinds["[MASK]"]
        found = tokenizer.encode_batch(pages, add_special_tokens=False)
        self.pieces = torch.tensor([piece for page in found for piece in page.ids])
        # Whether a piece goes on with a word.
        self.continues = torch.zeros(PIECES, dtype=torch.bool)
        for text, piece in kinds.items():
            self.continues[piece] = text.startswith("##")
        self.train = len(self.pieces) * 9 // 10  # the last tenth is held out

    def batch(self, starts: torch.Tensor, length: int, seeds: list[int]) -> Batch:
        """Returns sequences that begin at these places; the seed of each says what is masked.

        So a sequence is masked alike, whichever worker has it.
        """
        inner = self.pieces[starts[:, None] + torch.arange(length - 2)]
        first, last = (torch.full((len(starts), 1), end) for end in self.ends)
        pieces = torch.cat([first, inner, last], 1)
        chosen, seen = torch.zeros_like(pieces, dtype=torch.bool), pieces.clone()
        for row, seed in enumerate(seeds):
            draw = torch.Generator().manual_seed(seed)
            words = (~self.continues[pieces[row]]).cumsum(0)  # the number of each piece's word
            chance = torch.rand(length + 1, generator=draw)
            chosen[row] = chance[words] < MASKED
            chosen[row, [0, -1]] = False
            # Of the masked pieces, a tenth stays, and a tenth becomes any other piece.
            what = torch.rand(length, generator=draw)
            others = torch.randint(PIECES, (length,), generator=draw)
            seen[row] = torch.where(chosen[row] & (what < 0.9), others, seen[row])
            seen[row] = torch.where(chosen[row] & (what < 0.8), self.mask, seen[row])
        return Batch(seen, chosen, pieces[chosen])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--steps", type=int, default=300, help="steps of both phases together (default: 300)")
    add("--batch", type=int, default=32, help="sequences of all workers in a step (default: 32)")
    add("--rate", type=float, default=0.01, help="the highest learning rate (default: 0.01)")
    add("--warmup", type=float, default=0.1, help="part of a phase that rises (default: 0.1)")
    add("--wire-dtype", default="bfloat16", help="what gradients travel in (default: bfloat16)")
    add("--vocabulary", type=Path, help="take the pieces of words from this file, or write it")
    add("--record", type=Path, help="write the loss of each step to this file (JSON)")
    options = parser.parse_args()
    if options.batch < 4 or options.batch % 4:
        parser.error(f"--batch is {options.batch}; it must be a multiple of 4")
    return options


def rate_at(step: int, steps: int, warmup: int) -> float:
    """Returns the learning rate of a step of a phase, as a part of the highest."""
    if step < warmup:
        return (step + 1) / warmup
    return math.sqrt((steps - step) / (steps - warmup))


def train(
    model: nn.Module,
    text: Text,
    optimizer: torch.optim.Optimizer,
    steps: int,
    batch: int,
    length: int,
    options: argparse.Namespace,
) -> list[float]:
    """Trains for a phase, and returns the mean loss of each step over all workers' pieces."""
    rank, size = herring.rank(), herring.size()
    draw = torch.Generator().manual_seed(length)
    warmup = max(int(options.warmup * steps), 1)
    losses: list[float] = []
    began = time.perf_counter()
    for step in range(steps):
        starts = torch.randint(text.train - length, (batch,), generator=draw)
        mine = range(rank, batch, size)
        own = text.batch(starts[list(mine)], length, [step * batch + row for row in mine])
        for group in optimizer.param_groups:
            group["lr"] = options.rate * rate_at(step, steps, warmup)
        optimizer.zero_grad()
        loss = model(own)
        # The sums of losses and of masked pieces: workers have unequal numbers of these.
        total = torch.tensor([loss.item(), len(own.masked)], dtype=torch.float64)
        herring.allreduce(total, op="sum")
        (loss * size / total[1].item()).backward()
        optimizer.step()
        losses.append((total[0] / total[1]).item())
        if rank == 0 and ((step + 1) % 25 == 0 or step + 1 == steps):
            speed = (step + 1) * batch / (time.perf_counter() - began)
            print(
                f"length {length}, step {step + 1} of {steps}: loss {losses[-1]:.3f}, "
                f"{speed:.1f} sequences/s",
                flush=True,
            )
    return losses


def held_out(model: nn.Module, text: Text) -> float:
    """Returns the loss of 64 sequences that were not trained, for each masked piece."""
    with torch.no_grad():
        starts = torch.linspace(text.train, len(text.pieces) - 128, 64).long()
        batch = text.batch(starts, 128, list(range(64)))
        return float(model(batch)) / len(batch.masked)


def main() -> None:
    options = parse_arguments()
    torch.set_num_threads(1)  # The workers share this machine's cores.
    herring.init()
    if options.batch // 4 < herring.size():
        raise SystemExit(
            f"a batch of {options.batch} has {options.batch // 4} sequences of 512, too few for "
            f"{herring.size()} workers; give --batch {4 * herring.size()} or more"
        )
    text = Text(options.vocabulary)
    torch.manual_seed(1)
    model = Model()
    wire = None if options.wire_dtype == "float32" else options.wire_dtype
    wrapped = herring.DistributedDataParallel(model, wire_dtype=wire)
    optimizer = Lamb(model.parameters(), lr=options.rate, weight_decay=0.01, max_grad_norm=1.0)
    short = options.steps * 9 // 10
    losses = train(wrapped, text, optimizer, short, options.batch, 128, options)
    losses += train(
        wrapped, text, optimizer, options.steps - short, options.batch // 4, 512, options
    )
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    same = len(set(herring.allgather_object(digest.hexdigest()))) == 1
    if herring.rank() == 0:
        print(f"held-out loss {held_out(model, text):.3f}")
        print(f"parameters of all ranks: {'bit-identical' if same else 'DIFFERENT'}")
        if options.record:
            options.record.write_text(json.dumps({"workers": herring.size(), "losses": losses}))
    herring.shutdown()
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
