"""Language models: tied embeddings, recurrent nets, adapters, fine-tuning."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from .support import Block, integers, loop, state

WORDS = 24


def text(length: int, rows: int, *key: int) -> torch.Tensor:
    """Returns rows of words, each of which mostly follows from the word before."""
    start = integers(WORDS, (rows, 1), *key)
    steps = integers(3, (rows, length - 1), *key, 1) + 1
    return (start + torch.cat([torch.zeros_like(start), steps.cumsum(1)], 1)) % WORDS


class Transformer(nn.Module):
    """A language model whose output layer shares the weights of the embedding."""

    def __init__(self, *, layers: int = 2, dropout: float = 0.0, reentrant: bool | None = None):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.places = nn.Embedding(12, 16)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.reentrant = reentrant

    def forward(self, words, labels=None):
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            if self.reentrant is None or not self.training:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@loop
def tied_weights(dist):
    """GPT: tied weights, groups with and without decay, warm-up, accumulation, clipping."""
    model = Transformer(dropout=0.1)
    ddp = dist.wrap(model)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=5e-3,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    norms = []
    for step in range(6):
        for micro in range(2):
            # nanoGPT accumulates in this way; some of its forks set an attribute instead.
            words = text(9, 3, step, dist.rank, micro)
            if micro == 0:
                with ddp.no_sync():
                    (ddp(words[:, :-1], words[:, 1:])[1] / 2).backward()
            else:
                (ddp(words[:, :-1], words[:, 1:])[1] / 2).backward()
        norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.5, error_if_nonfinite=True))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
    return state(model, norms=torch.stack(norms))


class Recurrent(nn.Module):
    """The word language model from PyTorch's examples."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Embedding(WORDS, 16)
        self.rnn = nn.LSTM(16, 16, 2, batch_first=True)
        self.decoder = nn.Linear(16, WORDS)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.encoder(words), hidden)
        return self.decoder(output), hidden


@loop
def truncated_backward(dist):
    """Carries the hidden state through the text without its graph, and updates weights by hand."""
    model = Recurrent()
    ddp = dist.wrap(model)
    words = text(61, 4, dist.rank)
    hidden = tuple(torch.zeros(2, 4, 16) for _ in range(2))
    for start in range(0, 60, 6):
        inputs, labels = words[:, start : start + 6], words[:, start + 1 : start + 7]
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = ddp(inputs, hidden)
        F.cross_entropy(output.flatten(0, 1), labels.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-5.0)
    return state(model, hidden=hidden[0])


@loop
def overlapping_backward(dist):
    """Truncated backward over two chunks: each pass also goes through the chunk before."""
    model = Recurrent()
    ddp = dist.wrap(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    words = text(49, 4, dist.rank)
    hidden = tuple(torch.zeros(2, 4, 16) for _ in range(2))
    before = None
    for start in range(0, 48, 6):
        inputs, labels = words[:, start : start + 6], words[:, start + 1 : start + 7]
        output, hidden = ddp(inputs, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), labels.flatten())
        if before is None:
            before = loss
            continue
        optimizer.zero_grad()
        (before + loss).backward()
        optimizer.step()
        hidden = tuple(h.detach() for h in hidden)
        before = None
    return state(model)


class LowRank(nn.Module):
    """A frozen linear layer plus a trained layer of low rank."""

    def __init__(self, base: nn.Linear, rank: int = 2, alpha: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.a), self.b)

    @torch.no_grad()
    def merged(self):
        return self.base.weight + self.scale * self.b @ self.a


def adapted(reentrant: bool) -> tuple[Transformer, list[LowRank]]:
    model = Transformer(reentrant=reentrant).requires_grad_(False)
    layers = []
    for block in model.blocks:
        block.query, block.value = LowRank(block.query), LowRank(block.value)
        layers += [block.query, block.value]
    # Reentrant checkpoints need inputs with gradients, but all below the first block is frozen.
    model.words.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_())
    return model, layers


def adapt(dist, reentrant: bool):
    model, layers = adapted(reentrant)
    ddp = dist.wrap(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-2)
    for step in range(8):
        words = text(9, 4, step, dist.rank)
        ddp(words[:, :-1], words[:, 1:])[1].backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    merged = {f"merged{i}": layer.merged() for i, layer in enumerate(layers)}
    return state(model, **merged)


@loop
def adapters(dist):
    """LoRA on a frozen base, with checkpoints that are not reentrant."""
    return adapt(dist, reentrant=False)


@loop
def adapters_reentrant(dist):
    """LoRA with reentrant checkpoints, which run backward passes inside the backward pass."""
    return adapt(dist, reentrant=True)


@loop
def muon(dist):
    """Two optimizers: Muon for inner matrices, AdamW for the rest; one of them steps less often."""
    model = Transformer()
    ddp = dist.wrap(model)
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    inside = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in inside]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.02, momentum=0.9),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.8, 0.95)),
    ]
    for step in range(8):
        words = text(9, 4, step, dist.rank)
        ddp(words[:, :-1], words[:, 1:])[1].backward()
        for optimizer in optimizers[: 1 + step % 2]:
            optimizer.step()
            optimizer.zero_grad()
    return state(model)


@loop
def preferences(dist):
    """DPO: two forward passes each of the policy and a frozen reference, one backward pass."""
    policy, reference = Transformer(), Transformer().requires_grad_(False)
    ddp = dist.wrap(policy)
    reference.load_state_dict(policy.state_dict())
    optimizer = torch.optim.RMSprop(ddp.parameters(), lr=2e-3)

    def likelihood(model, words):
        chosen = model(words[:, :-1]).log_softmax(-1).gather(2, words[:, 1:, None])
        return chosen.squeeze(2).sum(1)

    for step in range(8):
        good, bad = text(9, 4, step, dist.rank), integers(WORDS, (4, 9), step, dist.rank)
        with torch.no_grad():
            base = likelihood(reference, good) - likelihood(reference, bad)
        margin = likelihood(ddp, good) - likelihood(ddp, bad) - base
        optimizer.zero_grad()
        (-F.logsigmoid(0.1 * margin).mean()).backward()
        optimizer.step()
    return state(policy)
