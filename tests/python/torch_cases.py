"""What each worker does in the tests of herring.torch: `python torch_cases.py CASE`.

Every case runs on all ranks of a job and fails by raising. `test_torch.py` starts the jobs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import herring.torch as herring

CASES: dict[str, Any] = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mlp(seed: int = 7, width: int = 32) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)
    )


def batch(step: int, rank: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(rows, 16, generator=generator),
        torch.randint(0, 4, (rows,), generator=generator),
    )


def everyones_batch(step: int, ranks: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [batch(step, rank) for rank in range(herring.size() if ranks is None else ranks)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Asserts a relative error in the norm."""
    error = (actual.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30)
    assert error <= tolerance, f"relative error {error:.3g} > {tolerance:.3g}"


def same_everywhere(tensors) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    digests = herring.allgather_object(digest.hexdigest())
    assert len(set(digests)) == 1, f"ranks differ: {digests}"


@contextlib.contextmanager
def raises(kind: type[BaseException], *words: str):
    try:
        yield
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} not in {error}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


# -- collectives ------------------------------------------------------------------------------------


@case
def collectives():
    rank, size = herring.rank(), herring.size()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        tensor = torch.full((5, 3), float(rank + 1), dtype=dtype)
        result = herring.allreduce(tensor)
        assert result is tensor
        assert torch.equal(tensor, torch.full_like(tensor, (size + 1) / 2))
        assert torch.equal(
            herring.allreduce(torch.tensor([rank + 1.0], dtype=dtype), "max"),
            torch.tensor([float(size)], dtype=dtype),
        )
        gathered = herring.allgather(torch.full((rank + 1, 2), float(rank), dtype=dtype))
        expected = torch.cat([torch.full((r + 1, 2), float(r), dtype=dtype) for r in range(size)])
        assert gathered.dtype == dtype
        assert torch.equal(gathered, expected)
        part = herring.reduce_scatter(
            torch.arange(2 * size, dtype=dtype).reshape(size, 2) + rank, "sum"
        )
        expected = torch.arange(2 * size, dtype=dtype).reshape(size, 2)[rank : rank + 1] * size
        assert part.dtype == dtype
        assert torch.equal(part, expected + sum(range(size)))
        rows = torch.arange(size, dtype=dtype).reshape(size, 1) + 10 * rank
        swapped = herring.alltoall(rows)
        expected = torch.tensor([[10.0 * r + rank] for r in range(size)], dtype=dtype)
        assert torch.equal(swapped, expected)
        shared = torch.full((3,), float(rank), dtype=dtype)
        assert herring.broadcast_(shared, root=size - 1) is shared
        assert torch.equal(shared, torch.full((3,), size - 1.0, dtype=dtype))
    counts = torch.tensor([rank, 1], dtype=torch.int64)
    assert herring.allreduce(counts, "sum").tolist() == [sum(range(size)), size]
    handles = [
        herring.allreduce_async(torch.full((100,), float(i)), "sum", name=f"async.{i}")
        for i in range(5)
    ]
    for i in reversed(range(5)):
        assert handles[i].wait()[0] == i * size
        assert handles[i].done()
    parameter = nn.Parameter(torch.full((4,), float(rank)))
    herring.broadcast(parameter, root=0)
    assert parameter.tolist() == [0.0] * 4
    scalar = torch.tensor(float(rank))
    assert herring.allreduce(scalar, "sum") is scalar
    assert scalar.item() == sum(range(size))
    assert herring.allgather(torch.tensor(float(rank))).tolist() == list(range(size))
    splits = [(rank + r) % 3 for r in range(size)]
    blocks = torch.cat([torch.full((n,), 10 * rank + r) for r, n in enumerate(splits)])
    received = herring.alltoall(blocks, splits)
    expected = torch.cat([torch.full(((r + rank) % 3,), 10 * r + rank) for r in range(size)])
    assert torch.equal(received, expected)


@case
def bad_tensors():
    with raises(herring.InvalidArgumentError, "not contiguous"):
        herring.allreduce(torch.zeros(4, 5).t())
    with raises(herring.InvalidArgumentError, "sparse"):
        herring.allreduce(torch.zeros(4, 5).to_sparse())
    with raises(herring.InvalidArgumentError, "torch.Tensor"):
        herring.allreduce([1.0, 2.0])
    with raises(herring.InvalidArgumentError):
        herring.allreduce(torch.zeros(4, dtype=torch.complex64))
    with raises(herring.InvalidArgumentError):
        herring.allreduce(torch.zeros(4, dtype=torch.int32), "average")
    assert herring.allreduce(torch.ones(2), "sum").tolist() == [herring.size()] * 2


# -- DistributedDataParallel ------------------------------------------------------------------------


def train(model, optimizer, data, steps: int, *, set_to_none: bool = True) -> None:
    for step in range(steps):
        inputs, labels = data(step)
        optimizer.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def mine(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(step, herring.rank())


@case
def equals_one_process():
    for set_to_none in (True, False):
        reference = mlp()
        model = mlp(seed=7 + herring.rank())  # rank 0's must win
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
    with raises(herring.InvalidArgumentError, "int8"):
        herring.DistributedDataParallel(mlp(), wire_dtype="int8")


class Branches(nn.Module):
    """Only the branches asked for take part."""

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
        # Branch 4 is never used; 3 only by the last rank; 0 to 2 vary with the step and the rank.
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
    # A rank whose output depends on no parameter at all, and a step where that holds for all.
    for touching in (range(1, size), range(0)):
        model.zero_grad()
        inputs = torch.ones(2, 16, requires_grad=True)
        ddp(inputs, [0] if rank in touching else []).sum().backward()
        expected = len(touching) / size
        if touching:
            close(model.branches[0].bias.grad, torch.full((4,), 2.0 * expected), 1e-6)
        else:
            assert all(p.grad is None for p in model.parameters())
    model.frozen.requires_grad_(True)
    with raises(herring.InvalidArgumentError, "frozen.weight", "frozen when"):
        ddp(torch.ones(2, 16), [0])


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
    """Two passes without a step between them; gradients add up as in one process."""
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
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer, mine, 2)
    places = [p.grad.data_ptr() for p in model.parameters()]
    train(ddp, optimizer, mine, 1)
    assert places == [p.grad.data_ptr() for p in model.parameters()]
    train(ddp, optimizer, mine, 1, set_to_none=False)
    assert places == [p.grad.data_ptr() for p in model.parameters()]
    kept = [p.grad for p in model.parameters()]
    values = [g.clone() for g in kept]
    ddp.close()
    del ddp
    assert all(torch.equal(a, b) for a, b in zip(kept, values))
    optimizer.zero_grad()
    inputs, labels = mine(0)
    F.cross_entropy(model(inputs), labels).backward()  # alone again, without hooks
    assert all(torch.equal(a, b) for a, b in zip(kept, values))


@case
def join():
    rank, size = herring.rank(), herring.size()
    # Rank r has 3 + 2 r batches, but for rank 1, which has none at all.
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
    """Rank 0, who records the order, has data only later."""
    rank = herring.rank()
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        with ddp.join():
            if rank != 0 or epoch == 1:
                train(ddp, optimizer, mine, 2 + rank)
        same_everywhere(model.parameters())
        assert ddp._reducer._final == (epoch == 1)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.a = nn.Linear(16, 12)
        self.b = nn.Linear(12, 12).double()
        self.c = nn.Linear(12, 12).bfloat16()
        self.d = nn.Linear(12, 4)

    def forward(self, x):
        x = torch.tanh(self.a(x))
        x = torch.tanh(self.b(x.double()))
        x = torch.tanh(self.c(x.bfloat16()))
        return self.d(x.float())


@case
def mixed_dtypes():
    model, reference = Mixed(), Mixed()
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        reference.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(ddp(inputs), labels).backward()
        for r in range(herring.size()):
            inputs, labels = batch(step, r)
            F.cross_entropy(reference(inputs), labels).backward()
        for p, q in zip(model.parameters(), reference.parameters()):
            assert p.grad.dtype == p.dtype
            close(p.grad, q.grad / herring.size(), 2e-2 if p.dtype == torch.bfloat16 else 1e-5)
        same_everywhere([p.grad for p in model.parameters()])


class Words(nn.Module):
    def __init__(self, sparse: bool):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(50, 16, sparse=sparse)
        self.head = nn.Linear(16, 4)

    def forward(self, words):
        return self.head(self.table(words).mean(1))


@case
def sparse_gradients():
    model, reference = Words(True), Words(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddp = herring.DistributedDataParallel(model)
        for step in range(4):
            model.zero_grad(set_to_none=step % 2 == 0)
            reference.zero_grad()
            for r in range(herring.size()):
                generator = torch.Generator().manual_seed(100 * step + r)
                words = torch.randint(0, 50, (6, 3), generator=generator)
                if r == herring.rank():
                    ddp(words).square().mean().backward()
                (reference(words).square().mean() / herring.size()).backward()
            assert model.table.weight.grad.layout == torch.strided
            close(model.table.weight.grad, reference.table.weight.grad, 1e-6)
    assert sum("sparse gradients" in str(w.message) for w in caught) == 1
    ddp.close()
    with raises(herring.InvalidArgumentError, "'table'", "sparse"):
        herring.DistributedDataParallel(model, sparse="error")


@case
def order_differs():
    """Ranks produce gradients in different orders, which change from step to step."""
    rank, size = herring.rank(), herring.size()
    torch.manual_seed(2)
    model = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, x, order):
            for i in order:
                x = torch.tanh(self.layers[i](x))
            return x

    ddp = herring.DistributedDataParallel(Chain(), buffer_bytes=1024)
    orders = {
        (step, r): torch.randperm(6, generator=torch.Generator().manual_seed(97 * step + r))
        for step in range(8)
        for r in range(size)
    }
    for step in range(8):
        ddp.zero_grad()
        ddp(mine(step)[0], orders[step, rank].tolist()).sum().backward()
        averages = [p.grad.clone() for p in model.parameters()]
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for r in range(size):
            with ddp.no_sync():
                ddp.zero_grad()
                ddp(batch(step, r)[0], orders[step, r].tolist()).sum().backward()
            for total, p in zip(sums, model.parameters()):
                total += p.grad / size
        for actual, expected in zip(averages, sums):
            close(actual, expected, 1e-5)
    # What was recorded at rank 0 in the first step: the reverse of its order, last layer first.
    expected = [i for layer in reversed(orders[0, 0].tolist()) for i in (2 * layer, 2 * layer + 1)]
    recorded = ddp._reducer._slots.order
    assert [i // 2 for i in recorded] == [i // 2 for i in expected], recorded


@case
def checkpoints():
    """Parameters accumulated several times in one pass, also by nested passes."""

    class Loop(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            torch.manual_seed(4)
            self.cell = nn.Linear(16, 16)
            self.tied = self.cell
            self.head = nn.Linear(16, 4)
            self.reentrant = reentrant
            self.nested = 3

        def forward(self, x):
            for _ in range(self.nested):
                block = lambda v: torch.tanh(self.cell(v))  # noqa: E731
                if self.reentrant is None:
                    x = block(x)
                else:
                    x = checkpoint(block, x, use_reentrant=self.reentrant)
            return self.head(torch.tanh(self.tied(x)))

    for reentrant in (True, False, None):
        for wrap in ("ddp", "optimizer"):
            model, reference = Loop(reentrant), Loop(None)
            if wrap == "ddp":
                ddp = herring.DistributedDataParallel(model)
                closing = ddp
            else:
                ddp = model
                closing = herring.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
                )
            # The second accumulation comes as a surprise in step 1; later it is expected.
            for step, nested in enumerate((0, 3, 3, 2)):
                model.nested = reference.nested = nested
                model.zero_grad()
                reference.zero_grad()
                inputs, labels = mine(step)
                F.cross_entropy(ddp(inputs.requires_grad_()), labels).backward()
                inputs, labels = everyones_batch(step)
                F.cross_entropy(reference(inputs), labels).backward()
                for p, q in zip(model.parameters(), reference.parameters()):
                    close(p.grad, q.grad, 1e-5)
            if wrap == "ddp":
                assert closing._reducer.rounds == 4
                assert bool(closing._reducer._deferred) == (reentrant is True)
            closing.close()


@case
def whole_wrapper_checkpointed():
    model, reference = mlp(), mlp()
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        reference.zero_grad()
        inputs, labels = mine(step)
        output = checkpoint(ddp, inputs.requires_grad_(), use_reentrant=False)
        F.cross_entropy(output, labels).backward()
        inputs, labels = everyones_batch(step)
        F.cross_entropy(reference(inputs), labels).backward()
        for p, q in zip(model.parameters(), reference.parameters()):
            close(p.grad, q.grad, 1e-5)


@case
def gradient_penalty():
    """torch.autograd.grad passes through the output but is no round."""
    model, reference = mlp(), mlp()
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        reference.zero_grad()
        for target, parts in ((ddp, [herring.rank()]), (reference, range(herring.size()))):
            for r in parts:
                inputs = batch(step, r)[0].requires_grad_()
                output = target(inputs)
                (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
                loss = output.square().mean() + slope.square().mean()
                (loss / len(parts)).backward()
        assert ddp._reducer.rounds == step + 1
        for p, q in zip(model.parameters(), reference.parameters()):
            if q.grad is None:
                assert p.grad is None
            else:
                close(p.grad, q.grad, 1e-5)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("planted")


class Planted(nn.Module):
    """Raises in the backward pass when told to, after some gradients have been produced."""

    armed = False

    def forward(self, x):
        return Fails.apply(x) if self.armed else x


@case
def backward_raises():
    rank, size = herring.rank(), herring.size()
    for culprits in (range(size), [size - 1]):
        for wrap in ("ddp", "optimizer"):
            model = mlp()
            model.insert(2, Planted())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if wrap == "ddp":
                ddp = herring.DistributedDataParallel(model)
                closing = ddp
            else:
                ddp = model
                closing = optimizer = herring.DistributedOptimizer(optimizer)
            for step in range(4):
                optimizer.zero_grad()
                inputs, labels = mine(step)
                if step in (0, 2):  # with the provisional plan and with the final one
                    model[2].armed = failing = rank in culprits
                    output = ddp(inputs)
                    model[2].armed = False
                    try:
                        F.cross_entropy(output, labels).backward()
                    except ArithmeticError:
                        assert failing
                    except herring.HerringError as error:
                        assert not failing, error
                        assert f"rank {size - 1} did not finish" in str(error)
                        assert all(p.grad is None for p in model.parameters())
                    else:
                        raise AssertionError("nothing was raised")
                    continue
                if wrap == "ddp":
                    train(ddp, optimizer, mine, 1)
                else:
                    F.cross_entropy(model(inputs), labels).backward()
                    optimizer.step()
            same_everywhere(model.parameters())
            closing.close()


@case
def buffers():
    rank = herring.rank()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model.register_buffer("scale", torch.full((3,), rank, dtype=torch.bfloat16))
    model.register_buffer("mask", torch.tensor([rank % 2 == 1]))
    ddp = herring.DistributedDataParallel(model)
    assert model.scale.tolist() == [0.0] * 3
    assert model.mask.tolist() == [False]
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 3)
    same_everywhere(model.parameters())
    model.scale.fill_(rank + 5)
    ddp.eval()
    ddp(mine(0)[0])  # eval mode and no_grad: a rank may do this alone
    if rank == 0:
        ddp(mine(0)[0])
    ddp.train()
    with torch.no_grad():
        ddp(mine(0)[0])
    assert model.scale[0] == rank + 5
    ddp(mine(0)[0])
    assert model.scale[0] == 5
    ddp.close()
    ddp = herring.DistributedDataParallel(model, broadcast_buffers=False)
    model.scale.fill_(rank + 5)
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 2)
    assert model.scale[0] == rank + 5


@case
def layouts():
    """Parameters that are not contiguous get gradients of their own layout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 4, 4))
    model = model.to(memory_format=torch.channels_last)
    model[2].weight = nn.Parameter(model[2].weight.detach().t().contiguous().t())
    ddp = herring.DistributedDataParallel(model)
    for step in range(3):
        model.zero_grad()
        generator = torch.Generator().manual_seed(step)
        everything = torch.randn(herring.size() * 2, 3, 4, 4, generator=generator)
        inputs = everything[2 * herring.rank() :][:2]
        ddp(inputs).square().mean().backward()
        average = [p.grad.clone() for p in model.parameters()]
        for p in model.parameters():
            assert p.grad.stride() == p.stride()
        with ddp.no_sync():
            model.zero_grad()
            ddp(everything).square().mean().backward()
        for actual, p in zip(average, model.parameters()):
            close(actual, p.grad, 1e-5)


@case
def module_interface():
    model = mlp()
    model.answer = 42
    ddp = herring.DistributedDataParallel(model)
    assert ddp.module is model
    assert ddp.answer == 42
    with raises(AttributeError, "nothing"):
        _ = ddp.nothing
    state = ddp.state_dict()
    assert list(state) == list(model.state_dict())
    mlp(seed=8).load_state_dict(state)
    ddp.load_state_dict(state)
    ddp.load_state_dict({f"module.{key}": value for key, value in state.items()})
    with raises(RuntimeError, "Missing key"):
        ddp.load_state_dict({key: state[key] for key in list(state)[1:]})
    outer = nn.ModuleDict({"net": ddp})
    assert list(outer.state_dict()) == [f"net.{key}" for key in state]
    outer.load_state_dict(outer.state_dict())
    with raises(herring.InvalidArgumentError, "ddp.module"):
        torch.save(ddp, os.devnull)
    with raises(herring.InvalidArgumentError, "already averaged", "0.weight"):
        herring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
    ddp.close()
    nothing = herring.DistributedDataParallel(mlp().requires_grad_(False))
    nothing(mine(0)[0])
    odd = nn.Linear(3, 3).to(torch.complex64)
    with raises(herring.InvalidArgumentError, "'weight'", "complex"):
        herring.DistributedDataParallel(odd)


@case
def mismatches():
    rank, size = herring.rank(), herring.size()
    others = "rank 0" if size == 2 else "ranks 0, " + ", ".join(map(str, range(1, size - 1)))
    with raises(herring.MismatchError, f"{others}: 2.weight", f"rank {size - 1}: 2.weight"):
        model = mlp()
        if rank == size - 1:
            model[2] = nn.Linear(32, 30)
        herring.DistributedDataParallel(model)
    with raises(herring.MismatchError, f"rank {size - 1}: (only"):
        model = mlp()
        if rank == size - 1:
            del model[4]
        herring.DistributedDataParallel(model)
    with raises(herring.MismatchError, "frozen"):
        model = mlp()
        if rank == 0:
            model[0].requires_grad_(False)
        herring.DistributedDataParallel(model)
    with raises(herring.MismatchError, "bfloat16"):
        herring.DistributedDataParallel(mlp(), wire_dtype=None if rank else "bfloat16")
    ddp = herring.DistributedDataParallel(mlp(), name="after the mismatches")
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), mine, 2)
    same_everywhere(ddp.parameters())


@case
def amp():
    """GradScaler and clipping see averages."""
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        inputs, labels = mine(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
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


# -- DistributedOptimizer and state -----------------------------------------------------------------


@case
def optimizer_equals_ddp():
    wrapped, plain = mlp(), mlp(seed=7 + herring.rank())
    ddp = herring.DistributedDataParallel(wrapped)
    first = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    second = herring.DistributedOptimizer(
        torch.optim.AdamW(plain.parameters(), lr=0.01), plain.named_parameters()
    )
    schedules = [torch.optim.lr_scheduler.StepLR(o, 3, 0.5) for o in (first, second)]
    for step in range(10):
        train(ddp, first, lambda _, step=step: mine(step), 1)
        train(plain, second, lambda _, step=step: mine(step), 1)
        for schedule in schedules:
            schedule.step()
    for p, q in zip(wrapped.parameters(), plain.parameters()):
        assert torch.equal(p, q)
    assert second.param_groups[0]["lr"] == first.param_groups[0]["lr"] < 0.01
    # Accumulation, and a rank whose pass touches no parameter.
    for optimizer, model in ((first, ddp), (second, plain)):
        optimizer.zero_grad()
        inputs, labels = mine(20)
        with (ddp if model is ddp else second).no_sync():
            F.cross_entropy(model(inputs), labels).backward()
        inputs, labels = mine(21)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    for p, q in zip(wrapped.parameters(), plain.parameters()):
        assert torch.equal(p, q)
    second.zero_grad()
    if herring.rank() != 0:
        F.cross_entropy(plain(mine(22)[0]), mine(22)[1]).backward()
    second.step()
    same_everywhere(plain.parameters())

    def closure():
        second.zero_grad()
        loss = F.cross_entropy(plain(mine(23)[0]), mine(23)[1])
        loss.backward()
        return loss

    assert second.step(closure).item() > 0
    same_everywhere(plain.parameters())
    with raises(herring.InvalidArgumentError, "not among named_parameters"):
        herring.DistributedOptimizer(
            torch.optim.SGD(mlp().parameters(), lr=0.1), mlp().named_parameters()
        )


@case
def add_param_group():
    model, head = mlp(), mlp(seed=9 + herring.rank())
    optimizer = herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, mine, 2)
    herring.broadcast_parameters(head.named_parameters())
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.2})
    for step in range(3):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(model(inputs) + head(inputs), labels).backward()
        optimizer.step()
    same_everywhere([*model.parameters(), *head.parameters()])
    assert len(optimizer.param_groups) == 2


@case
def broadcast_state():
    rank, size = herring.rank(), herring.size()
    root = size - 1
    kinds = {
        "SGD": {"lr": 0.1 + rank, "momentum": 0.9},
        "Adam": {"lr": 0.001, "amsgrad": True},
        "AdamW": {"lr": 0.001},
        "RMSprop": {"lr": 0.001, "centered": True},
        "Adagrad": {"lr": 0.01},
        "Rprop": {"lr": 0.01},
        "LBFGS": {"lr": 0.1},
    }
    for kind, options in kinds.items():
        model = mlp(seed=rank)
        optimizer = getattr(torch.optim, kind)(model.parameters(), **options)

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(mine(0)[0]), mine(0)[1])
            loss.backward()
            return loss

        if rank == root:  # as if only this rank had read a checkpoint
            for _ in range(3):
                optimizer.step(closure)
        herring.broadcast_parameters(model.state_dict(), root=root)
        herring.broadcast_optimizer_state(optimizer, root=root)
        same_everywhere(model.parameters())
        state = optimizer.state_dict()["state"]
        assert state
        text, tensors = [], []

        def walk(value, text=text, tensors=tensors):
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif isinstance(value, dict):
                for key in value:
                    text.append(key)
                    walk(value[key])
            elif isinstance(value, (list, tuple)):
                for item in value:
                    walk(item)
            else:
                text.append(value)

        walk(optimizer.state_dict())
        assert len(set(herring.allgather_object(repr(text)))) == 1
        same_everywhere(tensors)
        if kind == "SGD":
            assert optimizer.param_groups[0]["lr"] == 0.1 + root
        if kind != "LBFGS":  # going on from the same state with the same gradients: same result
            herring.DistributedOptimizer(optimizer, name=f"resumed.{kind}").step(closure)
            same_everywhere(model.parameters())
    # A fresh root clears what others had.
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank != 0:
        train(model, optimizer, mine, 1)
    herring.broadcast_optimizer_state(optimizer)
    assert not optimizer.state_dict()["state"]
    with raises(herring.MismatchError, "type"):
        other = torch.optim.Adam if rank else torch.optim.SGD
        herring.broadcast_optimizer_state(other(mlp().parameters(), lr=0.1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    herring.init()
    CASES[sys.argv[1]]()
    herring.shutdown()
