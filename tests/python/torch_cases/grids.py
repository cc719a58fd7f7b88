"""Models on a 2 x 2 grid of workers; different groups train different parts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import batch, close, everyones_batch, group_case, mine, raises, same_everywhere
from .wrapper import Planted


def grid() -> tuple[int, int, herring.Group, herring.Group]:
    """Returns this rank's row and column in the grid, and the groups of its row and column."""
    row, column = divmod(herring.rank(), 2)
    across = herring.new_group([2 * row, 2 * row + 1])
    down = herring.new_group([column, column + 2])
    return row, column, across, down


def first(seed: int) -> nn.Module:
    torch.manual_seed(50 + seed)
    return nn.Sequential(nn.Linear(16, 96), nn.BatchNorm1d(96, affine=False), nn.Tanh())


def second(seed: int) -> nn.Module:
    torch.manual_seed(60 + seed)
    return nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 4))


@group_case
def two_models_in_overlapping_groups():
    """A different pair of ranks shares each of two parts; one pass goes through both parts."""
    row, column, across, down = grid()
    for small in (0, 8192):
        parts = first(row), second(column)
        firsts, seconds = [first(r) for r in range(2)], [second(c) for c in range(2)]
        with torch.no_grad():
            parts[1][0].bias.add_(10 * row)  # all get the values of the column's first rank
        wrapped = (
            herring.DistributedDataParallel(parts[0], group=across, buffer_bytes=small),
            herring.DistributedDataParallel(parts[1], group=down, buffer_bytes=small),
        )
        optimizer = torch.optim.SGD([p for m in parts for p in m.parameters()], lr=0.1)
        theirs = torch.optim.SGD([p for m in (*firsts, *seconds) for p in m.parameters()], lr=0.1)
        for step in range(5):
            optimizer.zero_grad()
            inputs, labels = mine(step)
            F.cross_entropy(wrapped[1](wrapped[0](inputs)), labels).backward()
            theirs.zero_grad()
            for r in range(4):
                inputs, labels = batch(step, r)
                (F.cross_entropy(seconds[r % 2](firsts[r // 2](inputs)), labels) / 2).backward()
            for own, reference in zip(parts, (firsts[row], seconds[column])):
                for p, q in zip(own.parameters(), reference.parameters(), strict=True):
                    close(p.grad, q.grad, 1e-5)
            optimizer.step()
            theirs.step()
        same_everywhere(parts[0].parameters(), across)
        same_everywhere(parts[1].parameters(), down)
        assert [ddp.contributors for ddp in wrapped] == [2, 2]
        for ddp in wrapped:
            ddp.close()


@group_case
def tensor_and_data_parallel():
    """A row splits layers and sees the same data; the ranks of a column hold replicas."""
    row, column, across, down = grid()
    torch.manual_seed(3)
    into, out_of = nn.Linear(16, 32), nn.Linear(32, 4, bias=False)
    reference = nn.Sequential(into, nn.Tanh(), out_of)

    class Shard(nn.Module):
        def __init__(self):
            super().__init__()
            half = slice(16 * column, 16 * (column + 1))
            self.into = nn.Linear(16, 16)
            self.out_of = nn.Linear(16, 4, bias=False)
            with torch.no_grad():
                self.into.weight.copy_(into.weight[half])
                self.into.bias.copy_(into.bias[half])
                self.out_of.weight.copy_(out_of.weight[:, half])

        def forward(self, x):
            # Gradients are those of the sum of both ranks' losses, which are equal.
            partial = self.out_of(torch.tanh(self.into(x)))
            return herring.functional.allreduce(partial, "sum", group=across)

    model = Shard()
    ddp = herring.DistributedDataParallel(model, group=down)
    half = slice(16 * column, 16 * (column + 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        theirs.zero_grad()
        inputs, labels = batch(step, row)
        (F.cross_entropy(ddp(inputs), labels) / across.size).backward()
        inputs, labels = everyones_batch(step, 2)
        F.cross_entropy(reference(inputs), labels).backward()
        close(model.into.weight.grad, into.weight.grad[half], 1e-5)
        close(model.into.bias.grad, into.bias.grad[half], 1e-5)
        close(model.out_of.weight.grad, out_of.weight.grad[:, half], 1e-5)
        optimizer.step()
        theirs.step()
    same_everywhere(model.parameters(), down)


@group_case
def parts_used_in_any_order():
    """Ranks end their rounds in the same order, whatever the order in their graphs."""
    rank = herring.rank()
    _, _, across, down = grid()
    a, b = nn.Linear(16, 4), nn.Linear(16, 4)
    parts = {
        "a": herring.DistributedDataParallel(a, group=across, name="a"),
        "b": herring.DistributedDataParallel(b, group=down, name="b"),
    }
    # Each rank waits for the next one around the grid: 0 for 1, 1 for 3, 3 for 2, 2 for 0.
    order = "ab" if rank in (0, 3) else "ba"
    for step in range(6):
        a.zero_grad()
        b.zero_grad()
        inputs, labels = mine(step)
        first_, second_ = (parts[key] for key in (order if step % 2 else reversed(order)))
        x = first_(inputs)
        y = second_(inputs + 0 * x.sum())
        F.cross_entropy(x + y, labels).backward()
        for model, group in ((a, across), (b, down)):
            same_everywhere([p.grad for p in model.parameters()], group)


@group_case
def pass_through_two_groups_raises():
    """A rank that raises gives up the whole pass, and the ranks that learn so may continue."""
    rank = herring.rank()
    row, column, across, down = grid()
    parts = first(row), second(column)
    parts[0].insert(0, Planted())
    wrapped = (
        herring.DistributedDataParallel(parts[0], group=across),
        herring.DistributedDataParallel(parts[1], group=down),
    )
    optimizer = torch.optim.SGD([p for m in parts for p in m.parameters()], lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        inputs.requires_grad_()
        parts[0][0].armed = rank == 0 and step in (0, 2)
        output = wrapped[1](wrapped[0](inputs))
        parts[0][0].armed = False
        loss = F.cross_entropy(output, labels)
        if step in (1, 3):
            loss.backward()
            optimizer.step()
        elif rank == 0:
            with raises(ArithmeticError, "planted"):
                loss.backward()
        else:
            # Rank 3 shares no part with rank 0, but shares parts with ranks that cannot continue.
            with raises(herring.HerringError, "did not finish"):
                loss.backward()
    same_everywhere(parts[0].parameters(), across)
    same_everywhere(parts[1].parameters(), down)


@group_case
def two_optimizers_after_a_pass_that_raises():
    """A step that was given up is over, so the next step ends even if a part is not used."""
    rank = herring.rank()
    row, column, across, down = grid()
    parts = first(row), second(column)
    parts[0].insert(0, Planted())
    optimizers = [
        herring.DistributedOptimizer(torch.optim.SGD(part.parameters(), lr=0.1), group=group)
        for part, group in zip(parts, (across, down))
    ]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs, labels = mine(step)
        inputs.requires_grad_()
        parts[0][0].armed = rank == 0 and step in (0, 2)
        hidden = parts[0](inputs)
        if step in (0, 2):
            with raises(ArithmeticError if rank == 0 else herring.HerringError):
                F.cross_entropy(parts[1](hidden), labels).backward()
            continue
        parts[0][0].armed = False
        if rank in (0, 3):  # these ranks' passes do not use the second part
            hidden.square().mean().backward()
        else:
            F.cross_entropy(parts[1](hidden), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
        same_everywhere(parts[0].parameters(), across)
        same_everywhere(parts[1].parameters(), down)
    for optimizer in optimizers:
        optimizer.close()
