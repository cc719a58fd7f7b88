"""Groups of four workers: collectives on tensors, and the wrappers inside a group."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import batch, close, group_case, mine, mlp, raises, same_everywhere, train
from .wrapper import Planted

SOME = [0, 2, 3]  # rank 1 is not a member


def reference_gradients(model: nn.Module, step: int, ranks) -> list[torch.Tensor]:
    """Returns the gradients of the mean loss over these ranks' batches."""
    parts = [batch(step, r) for r in ranks]
    inputs, labels = (torch.cat(both) for both in zip(*parts))
    loss = F.cross_entropy(model(inputs), labels)
    return list(torch.autograd.grad(loss, list(model.parameters())))


@group_case
def grouped_collectives():
    rank = herring.rank()
    pairs = herring.new_group([rank - rank % 2, rank - rank % 2 + 1])
    some = herring.new_group(SOME)
    for group in (some, pairs, some):
        if group.rank is None:
            continue
        place, size = group.rank, group.size
        for dtype in (torch.float32, torch.bfloat16):
            every = [torch.full((4, 3), float(r + 1), dtype=dtype) for r in group.ranks]
            total = sum(every)
            own = every[place].clone()
            assert torch.equal(herring.allreduce(own, "sum", group=group), total)
            own = every[place]
            handle = herring.allreduce_async(own.clone(), "sum", group=group)
            assert torch.equal(handle.wait(), total)
            root = size - 1
            given = herring.broadcast(own.clone(), root, group=group)
            assert torch.equal(given, every[root])
            found = herring.allgather(own[:place], group=group)
            expected = torch.cat([e[:i] for i, e in enumerate(every)])
            assert torch.equal(found, expected)
            found = herring.gather(own[:place], root, group=group)
            assert torch.equal(found, expected) if place == root else found is None
            found = herring.reduce(own, "sum", root, group=group)
            assert torch.equal(found, total) if place == root else found is None
            splits = [4] + [0] * (size - 1)
            found = herring.reduce_scatter(own, "sum", splits, group=group)
            assert torch.equal(found, total[: splits[place]])
            found = herring.alltoall(own[:size], group=group)
            assert torch.equal(found, torch.cat([e[:1] for e in every]))
            rows = torch.arange(4 * size, dtype=dtype).reshape(-1, 2)
            found = herring.scatter(rows if place == root else None, root, group=group)
            assert found.dtype == dtype
            assert torch.equal(found, rows[2 * place : 2 * place + 2])
    if rank == 1:
        herring.barrier()
        return
    root = 1  # rank 1 of the group is rank 2 of the job
    model = mlp(seed=rank)
    herring.broadcast_parameters(model.state_dict(), root, group=some)
    for p, q in zip(model.parameters(), mlp(seed=2).parameters()):
        assert torch.equal(p, q)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank == 2:
        train(model, optimizer, mine, 1)
    herring.broadcast_optimizer_state(optimizer, root, group=some)
    same_everywhere([s["momentum_buffer"] for s in optimizer.state.values()], some)
    with raises(herring.HerringError, "refuses" if rank != 2 else "not contiguous"):
        try:
            herring.allgather(torch.zeros(4, 5).t() if rank == 2 else torch.zeros(4), group=some)
        except herring.HerringError as error:
            raise herring.HerringError(f"{error} refuses") from error
    with raises(herring.InvalidArgumentError, "root is 3", "0 to 2"):
        herring.scatter(torch.zeros(3), 3, group=some)
    herring.barrier()


@group_case
def strangers_are_refused():
    """Everything that takes a group refuses other ranks at once, without disturbing the members."""
    some = herring.new_group(SOME)
    if herring.rank() != 1:
        herring.barrier()
        return
    x, f = torch.ones(4), herring.functional
    sgd = torch.optim.SGD(mlp().parameters(), lr=0.1)
    for call in (
        lambda: herring.allreduce(x, group=some),
        lambda: herring.allreduce_async(x, group=some),
        lambda: herring.broadcast(x, group=some),
        lambda: herring.allgather(x, group=some),
        lambda: herring.reduce(x, group=some),
        lambda: herring.gather(x, group=some),
        lambda: herring.scatter(x, group=some),
        lambda: herring.reduce_scatter(x, group=some),
        lambda: herring.alltoall(x, group=some),
        lambda: f.allreduce(x, group=some),
        lambda: f.broadcast(x, group=some),
        lambda: f.allgather(x, group=some),
        lambda: f.reduce_scatter(x, group=some),
        lambda: f.alltoall(x, group=some),
        lambda: herring.broadcast_parameters({"x": x}, group=some),
        lambda: herring.broadcast_optimizer_state(sgd, group=some),
        lambda: herring.DistributedDataParallel(mlp(), group=some),
        lambda: herring.DistributedDataParallel(mlp(), group=some, sync="solo"),
        lambda: herring.DistributedOptimizer(sgd, group=some),
    ):
        with raises(herring.InvalidArgumentError, "rank 1 is not in group"):
            call()
    with raises(herring.InvalidArgumentError, "herring.Group"):
        herring.allreduce(x, group=[0, 1])
    herring.barrier()


@group_case
def grouped_gradients_of_collectives():
    rank = herring.rank()
    group = herring.new_group([rank % 2, rank % 2 + 2])
    place, size = group.rank, group.size
    f = herring.functional

    def inputs(rows):
        generator = torch.Generator().manual_seed(rows(0) + 10 * (rank % 2))
        return [
            torch.randn(rows(r), 3, generator=generator, dtype=torch.float64, requires_grad=True)
            for r in range(size)
        ]

    def weigh(x, r):
        return (x * torch.linspace(1, 2 + r, x.numel(), dtype=x.dtype).reshape(x.shape)).sum()

    splits = [[1, 3], [2, 1]]

    def pieces(every, r):
        return torch.cat([every[a].split(splits[a])[r] for a in range(size)])

    for shape, call, expect in (
        (lambda r: 4, f.allreduce, lambda e, r: sum(e) / size),
        (lambda r: 4, lambda x, group: f.broadcast(x, 1, group=group), lambda e, r: e[1] * 1),
        (lambda r: r + 1, f.allgather, lambda e, r: torch.cat(e)),
        (lambda r: 4, f.reduce_scatter, lambda e, r: (sum(e) / size)[2 * r : 2 * r + 2]),
        (lambda r: size, f.alltoall, lambda e, r: torch.cat([x[r : r + 1] for x in e])),
        (
            lambda r: sum(splits[r]),
            lambda x, group: f.alltoall(x, splits[place], group=group),
            pieces,
        ),
    ):
        every = inputs(shape)
        own = every[place].detach().clone().requires_grad_()
        result = call(own, group=group)
        close(result, expect(every, place), 1e-12)
        weigh(result, place).backward()
        sum(weigh(expect(every, r), r) for r in range(size)).backward()
        theirs = every[place].grad
        close(own.grad, torch.zeros_like(own) if theirs is None else theirs, 1e-12)
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    cubes = f.allreduce(x, "sum", group=group).pow(3)
    (slope,) = torch.autograd.grad(cubes.sum(), x, create_graph=True)
    slope.sum().backward()
    total = sum(r + 1.0 for r in group.ranks)
    close(x.grad, torch.full((2,), 6.0 * size**2 * total), 1e-6)


@group_case
def grouped_wrapper():
    """Parameters, buffers and averages stay in the group; the other rank trains another model."""
    rank = herring.rank()
    some, alone = herring.new_group(SOME), herring.new_group([1])
    group = alone if rank == 1 else some
    torch.manual_seed(40 + rank)
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model.register_buffer("mark", torch.tensor([rank + 1.0]))
    ddp = herring.DistributedDataParallel(model, group=group)
    assert ddp.name.startswith(group.name)
    assert model.mark == group.ranks[0] + 1
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 3)
    same_everywhere(model.parameters(), group)
    assert ddp.contributors == group.size
    model.mark.fill_(rank + 1)
    ddp(mine(0)[0])
    assert model.mark == group.ranks[0] + 1
    digests = herring.allgather_object(model[0].weight.sum().item())
    assert digests[1] != digests[0] == digests[2] == digests[3]
    ddp.close()
    for views in (False, True):
        model = mlp()
        ddp = herring.DistributedDataParallel(
            model, group=group, gradient_as_bucket_view=views, wire_dtype="float32"
        )
        for step in range(3):
            model.zero_grad()
            inputs, labels = mine(step)
            with ddp.no_sync():
                (F.cross_entropy(ddp(inputs[:4]), labels[:4]) / 2).backward()
            (F.cross_entropy(ddp(inputs[4:]), labels[4:]) / 2).backward()
            for p, q in zip(
                model.parameters(), reference_gradients(model, step, group.ranks), strict=True
            ):
                close(p.grad, q, 1e-5)
        ddp.close()
    with raises(herring.InvalidArgumentError, "not both"):
        herring.DistributedDataParallel(mlp(), process_group=object(), group=group)


@group_case
def grouped_mismatch():
    """Only the group's members learn of a mismatch; the error names the ranks of the job."""
    group = herring.new_group(SOME)
    if herring.rank() != 1:
        with raises(herring.MismatchError, "ranks 0, 3: 2.weight", "rank 2: 2.weight"):
            model = mlp()
            if herring.rank() == 2:
                model[2] = nn.Linear(32, 30)
            herring.DistributedDataParallel(model, group=group)
    ddp = herring.DistributedDataParallel(mlp())
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), mine, 2)
    same_everywhere(ddp.parameters())


@group_case
def grouped_join():
    rank = herring.rank()
    some, alone = herring.new_group(SOME), herring.new_group([1])
    group = alone if rank == 1 else some
    batches = {0: 2, 1: 6, 2: 5, 3: 0}
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    ddp = herring.DistributedDataParallel(model, group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ddp.join() as joined:
        for step in range(batches[rank]):
            train(ddp, optimizer, lambda _, step=step: mine(step), 1)
            there = sum(batches[r] > step for r in group.ranks)
            assert ddp.contributors == there, (ddp.contributors, there)
    assert joined.steps == batches[rank]
    assert joined.last == (0 if rank == 1 else 1)  # rank 2 is rank 1 of its group
    herring.broadcast_optimizer_state(optimizer, joined.last, group=group)
    same_everywhere(model.state_dict().values(), group)
    same_everywhere([s["momentum_buffer"] for s in optimizer.state.values()], group)


@group_case
def grouped_optimizers():
    rank = herring.rank()
    group = herring.new_group([rank - rank % 2, rank - rank % 2 + 1])
    plain, reference = mlp(seed=rank), mlp(seed=group.ranks[0])
    optimizer = herring.DistributedOptimizer(
        torch.optim.SGD(plain.parameters(), lr=0.1), plain.named_parameters(), group=group
    )
    theirs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(plain(inputs), labels).backward()
        optimizer.step()
        for p, q in zip(
            reference.parameters(), reference_gradients(reference, step, group.ranks), strict=True
        ):
            p.grad = q
        theirs.step()
        for p, q in zip(plain.parameters(), reference.parameters()):
            close(p, q, 1e-5)
    optimizer.zero_grad()
    if rank % 2:  # the other rank's pass touches no parameter
        F.cross_entropy(plain(mine(9)[0]), mine(9)[1]).backward()
    optimizer.step()
    same_everywhere(plain.parameters(), group)
    optimizer.close()
    # For sparse gradients, ranks exchange rows.
    torch.manual_seed(5)
    table = nn.Embedding(50, 4, sparse=True)
    ddp = herring.DistributedDataParallel(table, group=group)
    for step in range(3):
        table.zero_grad()
        words = torch.tensor([[step, rank], [rank, 9]])
        ddp(words).sum().backward()
        expected = torch.zeros(50, 4)
        for r in group.ranks:
            for word in (step, r, r, 9):
                expected[word] += 1 / 2
        assert table.weight.grad.is_sparse
        close(table.weight.grad.to_dense(), expected, 1e-6)


@group_case
def grouped_rounds():
    """Tests partial all-reduces in a group."""
    some = herring.new_group(SOME)
    if herring.rank() == 1:
        return
    with raises(herring.InvalidArgumentError, "takes no group", "herring.Quorum"):
        herring.DistributedDataParallel(mlp(), sync=herring.Replay("no file"), group=some)
    for sync in ("solo", herring.Quorum(3, staleness=0)):
        for wraps in (True, False):
            model = mlp(seed=herring.rank())
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            if wraps:
                wrapper = forward = herring.DistributedDataParallel(model, sync=sync, group=some)
            else:
                forward = model
                wrapper = herring.DistributedOptimizer(sgd, sync=sync, group=some)
            for step in range(3 + herring.rank() if sync == "solo" else 3):
                sgd.zero_grad()
                inputs, labels = mine(step)
                F.cross_entropy(forward(inputs), labels).backward()
                before = [p.detach().clone() for p in model.parameters()]
                if not wraps:
                    wrapper.step()
                    continue
                for _ in wrapper.rounds():
                    if sync != "solo":
                        reference = copy.deepcopy(model)
                        for p, q in zip(reference.parameters(), before):
                            p.data.copy_(q)
                        for p, q in zip(
                            model.parameters(), reference_gradients(reference, step, SOME)
                        ):
                            close(p.grad, q, 1e-5)
                    sgd.step()
            if wraps:
                for _ in wrapper.flush():
                    sgd.step()
            else:
                wrapper.flush()
            same_everywhere(model.parameters(), some)
            wrapper.close()
    with raises(herring.InvalidArgumentError, "quorum is 4"):
        herring.DistributedDataParallel(mlp(), sync=herring.Quorum(4), group=some)


@group_case
def backward_raises_in_a_group():
    rank = herring.rank()
    some, alone = herring.new_group(SOME), herring.new_group([1])
    group = alone if rank == 1 else some
    model = mlp()
    model.insert(2, Planted())
    ddp = herring.DistributedDataParallel(model, group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        model[2].armed = rank == 2 and step in (0, 2)
        output = ddp(inputs)
        model[2].armed = False
        try:
            F.cross_entropy(output, labels).backward()
        except ArithmeticError:
            assert rank == 2 and step in (0, 2)
        except herring.HerringError as error:
            assert rank in (0, 3) and step in (0, 2), error
            assert "rank 2 did not finish" in str(error), error
        else:
            assert rank == 1 or step in (1, 3)
            optimizer.step()
    same_everywhere(model.parameters(), group)
    ddp.close()


@group_case
def copies_of_a_grouped_wrapper():
    rank = herring.rank()
    group = herring.new_group([rank - rank % 2, rank - rank % 2 + 1])
    ddp = herring.DistributedDataParallel(mlp(), group=group)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), mine, 2)
    student = copy.deepcopy(ddp)
    train(student, torch.optim.SGD(student.parameters(), lr=0.1), mine, 2)
    same_everywhere(student.parameters(), group)
    assert student.contributors == 2
    values = herring.allgather_object(student.module[0].weight.sum().item())
    assert values[0] == values[1] != values[2] == values[3]
    read = pickle.loads(pickle.dumps(ddp))
    read.eval()
    assert torch.equal(read(mine(0)[0]), ddp.module(mine(0)[0]))
    with raises(herring.InvalidArgumentError, "is not saved", str(list(group.ranks))):
        read(mine(0)[0]).sum().backward()
