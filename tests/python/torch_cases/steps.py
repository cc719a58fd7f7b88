"""Cases for what a training step computes with DistributedDataParallel."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import batch, case, close, everyones_batch, mine, mlp, raises, same_everywhere, train


@case
def equals_one_process():
    for set_to_none in (True, False):
        reference = mlp()
        model = mlp(seed=7 + herring.rank())  # rank 0's values must win
        ddp = herring.DistributedDataParallel(model)
        optimizers = [
            torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)
        ]
        train(ddp, optimizers[0], mine, 1, set_to_none=set_to_none)
        train(reference, optimizers[1], everyones_batch, 1)
        for actual, expected in zip(model.parameters(), reference.parameters()):
            close(actual, expected, 1e-6)
        train(ddp, optimizers[0], mine, 100, set_to_none=set_to_none)
        train(reference, optimizers[1], everyones_batch, 100)
        for actual, expected in zip(model.parameters(), reference.parameters()):
            close(actual, expected, 1e-4)
        same_everywhere(model.parameters())
        ddp.close()


@case
def wire_dtype():
    sent = {}
    losses = {}
    for wire in (None, torch.bfloat16, "float16"):
        model = mlp(width=512)
        ddp = herring.DistributedDataParallel(model, wire_dtype=wire)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train(ddp, optimizer, mine, 2)
        herring.barrier()
        before = herring.stats()["bytes_sent"]
        train(ddp, optimizer, mine, 20)
        sent[wire] = herring.stats()["bytes_sent"] - before
        same_everywhere(model.parameters())
        assert next(model.parameters()).grad.dtype == torch.float32
        inputs, labels = everyones_batch(0)
        losses[wire] = F.cross_entropy(model(inputs), labels).item()
        ddp.close()
    for wire in (torch.bfloat16, "float16"):
        assert abs(losses[wire] - losses[None]) < 0.02, losses
        if herring.num_nodes() > 1:
            assert sent[None] > 20 * 4 * 512 * 512 / herring.local_size(), sent
            assert 0.45 < sent[wire] / sent[None] < 0.55, sent
    with raises(herring.InvalidArgumentError, "int16", "bfloat16"):
        herring.DistributedDataParallel(mlp(), wire_dtype="int16")


class Branches(nn.Module):
    """A model in which only the requested branches take part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.branches = nn.ModuleList(nn.Linear(16, 4) for _ in range(5))
        self.frozen = nn.Linear(16, 4).requires_grad_(False)
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x, which):
        return sum((self.branches[i](x) for i in which), self.frozen(x))


@case
def unused_parameters():
    rank, size = herring.rank(), herring.size()
    model = Branches()
    reference = Branches()
    ddp = herring.DistributedDataParallel(model)
    for step in range(6):
        # No rank uses branch 4, only the last uses 3, and 0 to 2 vary with the step and the rank.
        used = [[(step + r) % 3] + ([3] if r == size - 1 else []) for r in range(size)]
        model.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(ddp(inputs, used[rank]), labels).backward()
        reference.zero_grad()
        for r in range(size):
            inputs, labels = batch(step, r)
            (F.cross_entropy(reference(inputs, used[r]), labels) / size).backward()
        for (name, p), q in zip(model.named_parameters(), reference.parameters()):
            assert (p.grad is None) == (q.grad is None), (step, name)
            if q.grad is not None:
                close(p.grad, q.grad, 1e-6)
    assert model.branches[4].weight.grad is None
    assert model.frozen.weight.grad is None
    # The output depends on no parameter: first on rank 0 only, then on all ranks.
    for touching in (range(1, size), range(0)):
        model.zero_grad()
        inputs = torch.ones(2, 16, requires_grad=True)
        ddp(inputs, [0] if rank in touching else []).sum().backward()
        expected = len(touching) / size
        if touching:
            close(model.branches[0].bias.grad, torch.full((4,), 2.0 * expected), 1e-6)
        else:
            assert all(p.grad is None for p in model.parameters())


@case
def no_sync():
    for set_to_none in (True, False):
        model, reference = mlp(), mlp()
        ddp = herring.DistributedDataParallel(model)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
        for step in range(4):
            rounds = ddp._reducer.rounds
            for optimizer in optimizers:
                optimizer.zero_grad(set_to_none=set_to_none)
            for micro in range(3):
                inputs, labels = batch(10 * step + micro, herring.rank())
                with ddp.no_sync() if micro < 2 else contextlib.nullcontext():
                    F.cross_entropy(ddp(inputs), labels).backward()
                inputs, labels = everyones_batch(10 * step + micro)
                F.cross_entropy(reference(inputs), labels).backward()
            assert ddp._reducer.rounds == rounds + 1
            for optimizer in optimizers:
                optimizer.step()
            for p, q in zip(model.parameters(), reference.parameters()):
                close(p.grad, q.grad, 1e-5)
                close(p, q, 1e-6)
        same_everywhere(model.parameters())
        ddp.close()


@case
def repeated_backward():
    """Gradients of two passes without a step between them add up as in one process."""
    model, reference = mlp(), mlp()
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        reference.zero_grad()
        for micro in range(2):
            inputs, labels = batch(10 * step + micro, herring.rank())
            F.cross_entropy(ddp(inputs), labels).backward()
            inputs, labels = everyones_batch(10 * step + micro)
            F.cross_entropy(reference(inputs), labels).backward()
        for p, q in zip(model.parameters(), reference.parameters()):
            close(p.grad, q.grad, 1e-5)


@case
def grad_views():
    for views in (False, True):
        model = mlp()
        ddp = herring.DistributedDataParallel(model, gradient_as_bucket_view=views)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(ddp, optimizer, mine, 2)
        layout = ddp._reducer._layout
        assert all(layout.holds(i, p.grad) == views for i, p in enumerate(model.parameters()))
        places = [p.grad.data_ptr() for p in model.parameters()]
        train(ddp, optimizer, mine, 1, set_to_none=False)
        assert places == [p.grad.data_ptr() for p in model.parameters()]
        train(ddp, optimizer, mine, 1)
        assert not views or places == [p.grad.data_ptr() for p in model.parameters()]
        kept = [p.grad for p in model.parameters()]
        values = [g.clone() for g in kept]
        del layout
        ddp.close()
        del ddp
        assert all(torch.equal(a, b) for a, b in zip(kept, values))
        optimizer.zero_grad()
        inputs, labels = mine(0)
        F.cross_entropy(model(inputs), labels).backward()  # without hooks after close
        assert all(torch.equal(a, b) for a, b in zip(kept, values))


@case
def join():
    rank, size = herring.rank(), herring.size()
    # Rank r has 3 + 2 r batches, except for rank 1, which has none.
    counts = [0 if r == 1 else 3 + 2 * r for r in range(size)]
    for with_buffers in (False, True):
        model, reference = mlp(), mlp()
        if with_buffers:
            model[1], reference[1] = nn.BatchNorm1d(32), nn.Tanh()
        ddp = herring.DistributedDataParallel(model)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
        with ddp.join() as joined:
            for step in range(counts[rank]):
                train(ddp, optimizers[0], lambda _, step=step: mine(step), 1)
                active = [r for r in range(size) if step < counts[r]]
                assert ddp.contributors == len(active), (step, ddp.contributors)
        assert joined.last == size - 1
        assert joined.steps == counts[rank]
        same_everywhere([*model.parameters(), *model.buffers()])
        if with_buffers:
            assert model[1].num_batches_tracked == max(counts)
        else:
            for step in range(max(counts)):
                parts = [batch(step, r) for r in range(size) if step < counts[r]]
                inputs, labels = (torch.cat(list(part)) for part in zip(*parts))
                train(reference, optimizers[1], lambda _, i=inputs, y=labels: (i, y), 1)
            for p, q in zip(model.parameters(), reference.parameters()):
                close(p, q, 1e-5)
        train(ddp, optimizers[0], mine, 2)
        assert ddp.contributors == size
        ddp.close()


@case
def join_without_rank_0():
    """Rank 0, which records the order, has no data at first."""
    rank = herring.rank()
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        with ddp.join():
            if rank != 0 or epoch == 1:
                train(ddp, optimizer, mine, 2 + rank)
        same_everywhere(model.parameters())
        assert ddp._reducer._layout.final == (epoch == 1)


@case
def amp():
    """GradScaler and clipping see averaged gradients."""
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    for step in range(4):
        inputs, labels = mine(step)
        optimizer.zero_grad()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            loss = F.cross_entropy(ddp(inputs), labels)
        if step == 2 and herring.rank() == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        norms = herring.allgather(norm.detach().reshape(1))
        assert step == 2 or norms.unique().numel() == 1
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    same_everywhere(model.parameters())


@case
def expanded_gradients_are_replaced():
    """`.grad` of a parameter that this rank does not use may have one element for all."""
    model = mlp()
    spare = nn.Parameter(torch.zeros(3))
    model.register_parameter("spare", spare)
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        spare.grad = torch.full((1,), float(herring.rank())).expand(3)
        inputs, labels = mine(step)
        F.cross_entropy(ddp(inputs), labels).backward()
        close(spare.grad, torch.full((3,), (herring.size() - 1) / 2), 1e-6)
    ddp.close()
