"""Cases found by running loops that torch's DistributedDataParallel handles correctly."""

from __future__ import annotations

import copy
import os
import signal
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import batch, case, close, everyones_batch, mine, mlp, raises, same_everywhere, train


@case
def scaler_with_fused_optimizer():
    """A fused optimizer unscales gradients itself, so it needs the scale and the overflow flag."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    plain = torch.optim.SGD(parameters[:1], lr=0.1, fused=True)
    wrapped = herring.DistributedOptimizer(torch.optim.SGD(parameters[1:], lr=0.1, fused=True))
    for parameter, optimizer in zip(parameters, (plain, wrapped)):
        scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=65536.0)
        for step in range(4):
            optimizer.zero_grad()
            factor = float("inf") if step == 2 else 1.0
            scaler.scale((parameter * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 32768.0
    assert torch.equal(*parameters)
    close(parameters[1].detach(), torch.full((2,), 0.7), 1e-6)
    schedule = torch.optim.lr_scheduler.StepLR(wrapped, 1, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped.step()
        schedule.step()
    assert wrapped.inner.param_groups[0]["lr"] == 0.05


@case
def kept_gradients():
    """PCGrad and GradNorm keep and compare the gradients of several losses."""
    for wrap in ("ddp", "optimizer"):
        model, reference = mlp(), mlp()
        if wrap == "ddp":
            net = closing = herring.DistributedDataParallel(model)
        else:
            net = model
            closing = herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(4):
            kept, views, arrays, expected = [], [], [], []
            for task in range(3):
                for target, (inputs, labels), into in (
                    (net, batch(10 * step + task, herring.rank()), kept),
                    (reference, everyones_batch(10 * step + task), expected),
                ):
                    target.zero_grad()
                    F.cross_entropy(target(inputs), labels).backward()
                    into.append([p.grad for p in target.parameters()])
                views.append([p.grad.view(-1) for p in model.parameters()])
                copies = [p.grad.cpu().numpy() for p in model.parameters()]
                arrays.append(
                    [torch.from_numpy(one).to(torch.get_default_device().type) for one in copies]
                )
            for those in (kept, arrays):
                for mine_, theirs in zip(those, expected):
                    for g, h in zip(mine_, theirs):
                        close(g, h, 1e-5)
            for mine_, theirs in zip(views, expected):
                for g, h in zip(mine_, theirs):
                    close(g, h.view(-1), 1e-5)
        closing.close()


@case
def gradients_in_memory_of_the_users():
    """Each `.grad` is a view of one flat tensor that belongs to the user."""
    model, reference = mlp(), mlp()
    ddp = herring.DistributedDataParallel(model)
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    start = 0
    for p in model.parameters():
        p.grad = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    for step in range(3):
        flat.zero_()
        reference.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(ddp(inputs), labels).backward()
        inputs, labels = everyones_batch(step)
        F.cross_entropy(reference(inputs), labels).backward()
        close(flat, torch.cat([p.grad.view(-1) for p in reference.parameters()]), 1e-5)


@case
def gradual_unfreezing():
    for wrap in ("ddp", "optimizer", "views"):
        model, reference = mlp(seed=7 + herring.rank()), mlp()
        for net in (model, reference):
            net.requires_grad_(False)
            net[4].requires_grad_(True)
        second = torch.optim.SGD(reference.parameters(), lr=0.1)
        first = torch.optim.SGD(model.parameters(), lr=0.1)
        if wrap == "optimizer":
            ddp = model
            closing = first = herring.DistributedOptimizer(first, model.named_parameters())
        else:
            closing = ddp = herring.DistributedDataParallel(
                model, gradient_as_bucket_view=wrap == "views"
            )
        for step in range(8):
            if step in (2, 4):
                for net in (model, reference):
                    net[4 - step].requires_grad_(True)
            if step == 6:
                for net in (model, reference):
                    net[4].requires_grad_(False)
            train(ddp, first, lambda _, step=step: mine(step), 1)
            train(reference, second, lambda _, step=step: everyones_batch(step), 1)
            for p, q in zip(model.parameters(), reference.parameters()):
                close(p, q, 1e-5)
                if q.grad is not None:
                    close(p.grad, q.grad, 1e-5)
        same_everywhere(model.parameters())
        closing.close()


@case
def unfrozen_on_one_rank():
    rank = herring.rank()
    model = mlp()
    model[0].requires_grad_(False)
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer, mine, 2)
    if rank == 1:
        model[0].requires_grad_(True)
    for _ in range(2):
        with raises(herring.MismatchError, "0.weight"):
            train(ddp, optimizer, mine, 1)
    model[0].requires_grad_(True)
    train(ddp, optimizer, mine, 2)
    same_everywhere(model.parameters())


@case
def replaced_head():
    for only in (None, 0):
        model = mlp()
        ddp = herring.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(ddp, optimizer, mine, 2)
        if only in (None, herring.rank()):
            model[4] = nn.Linear(32, 4)
        kind = herring.InvalidArgumentError if only is None else herring.MismatchError
        for _ in range(2):
            with raises(kind, "4.weight"):
                train(ddp, optimizer, mine, 1)
        ddp.close()
        if only is None:
            ddp = herring.DistributedDataParallel(model)
            train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 2)
            same_everywhere(model.parameters())
            ddp.close()
    # Adds parameters by modifying a group directly, and with the method meant for it.
    model = mlp()
    optimizer = herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, optimizer, mine, 2)
    strange = nn.Parameter(torch.ones(4))
    optimizer.param_groups[0]["params"].append(strange)
    with raises(herring.InvalidArgumentError, "group0.parameter6"):
        train(nn.Sequential(model), optimizer, mine, 1)
    optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [strange]})
    train(model, optimizer, mine, 2)
    optimizer.close()


@case
def two_forward_passes():
    """Siamese networks and GANs make two passes, between which statistics go to all ranks."""
    torch.manual_seed(herring.rank())
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        (ddp(mine(2 * step)[0]) - ddp(mine(2 * step + 1)[0])).square().mean().backward()
        optimizer.step()
    same_everywhere(model.parameters())
    assert model[1].num_batches_tracked == 8


@case
def returned_parameter():
    """Hooks on outputs of forward vanish with the graph, or exist only once per parameter."""

    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.again = None

        def forward(self, x):
            return (self.weight * x).sum(), self.weight, self.again

    model = Returns()
    ddp = herring.DistributedDataParallel(model)
    first, second = model.weight * 1, torch.ones(3, requires_grad=True) * 1
    model.again = [first, second]
    for step in range(20):
        model.zero_grad()
        loss, weight, (again, other) = ddp(torch.full((3,), herring.rank() + 1.0))
        (loss + weight.sum() + 0 * again.sum()).backward(retain_graph=True)
        close(model.weight.grad, torch.full((3,), (herring.size() + 1) / 2 + 1), 1e-6)
        if step == 0:
            hooks = [len(t._backward_hooks or {}) for t in (model.weight, first, other)]
    assert hooks == [len(t._backward_hooks or {}) for t in (model.weight, first, other)], hooks
    assert len(model.weight._post_accumulate_grad_hooks) == 1


@case
def synchronize_then_step():
    model = mlp()
    optimizer = herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.synchronize()
        optimizer.step()
        assert optimizer._reducer.rounds == step + 1
    for touched in (1, 0):  # also if only some ranks touched a parameter
        optimizer.zero_grad()
        if herring.rank() >= touched:
            F.cross_entropy(model(mine(5)[0]), mine(5)[1]).backward()
        optimizer.synchronize()
        optimizer.step()
    assert optimizer._reducer.rounds == 5
    same_everywhere(model.parameters())


@case
def forked_child():
    """A forked child that trains the model gets the error that it is not a member of the job."""
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 2)
    inputs, labels = mine(0)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        status = 1
        try:
            with raises(herring.ShutdownError, "forked child"):
                F.cross_entropy(ddp(inputs), labels).backward()
            model.zero_grad()
            with ddp.no_sync():
                F.cross_entropy(ddp(inputs), labels).backward()
            assert all(p.grad is not None for p in model.parameters())
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 2)
    same_everywhere(model.parameters())


@case
def copies():
    """Copies of a wrapper do not communicate until they are trained themselves."""
    model = mlp()
    model[1] = nn.BatchNorm1d(32)
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = torch.optim.swa_utils.AveragedModel(
        ddp, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    if herring.rank() == 0:
        teacher = copy.deepcopy(ddp)
        teacher.eval()
    for step in range(3):
        train(ddp, optimizer, lambda _, step=step: mine(step), 1)
        average.update_parameters(ddp)
    if herring.rank() == 0:
        assert not torch.equal(teacher(mine(0)[0]), ddp.module(mine(0)[0]))
        average(mine(0)[0])
    same_everywhere(average.parameters())
    student = copy.deepcopy(ddp)
    assert student.module is not model
    before = [p.detach().clone() for p in model.parameters()]
    train(student, torch.optim.SGD(student.parameters(), lr=0.1), mine, 3)
    same_everywhere(student.parameters())
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters()))
    assert not torch.equal(student.module[0].weight, model[0].weight)
    train(ddp, optimizer, mine, 1)
    same_everywhere(model.parameters())


@case
def torch_arguments():
    model = mlp(width=128)
    ddp = herring.DistributedDataParallel(
        model,
        device_ids=None,
        output_device=None,
        dim=0,
        broadcast_buffers=True,
        init_sync=True,
        process_group=None,
        bucket_cap_mb=0.01,
        find_unused_parameters=True,
        check_reduction=False,
        gradient_as_bucket_view=True,
        static_graph=True,
        mixed_precision=None,
    )
    train(ddp, torch.optim.SGD(model.parameters(), lr=0.1), mine, 3)
    same_everywhere(model.parameters())
    assert len(ddp._reducer._layout.plan.buffers) > 1
    ddp.close()
    model = mlp()
    with torch.no_grad():
        model[0].bias.add_(herring.rank())
    ddp = herring.DistributedDataParallel(model, init_sync=False)
    assert model[0].bias.isclose(mlp()[0].bias + herring.rank()).all()
    ddp.close()
    for words, arguments in {
        "on the CPU it must be None": {"device_ids": [0]},
        "one device": {"device_ids": [0, 1]},
        "without device_ids": {"output_device": 0},
        "group=herring.new_group": {"process_group": object()},
        "autocast": {"mixed_precision": object()},
        "device_mesh": {"device_mesh": object()},
        "not both": {"bucket_cap_mb": 1, "buffer_bytes": 8192},
        "more than 0": {"bucket_cap_mb": 0},
    }.items():
        with raises(herring.InvalidArgumentError, words):
            herring.DistributedDataParallel(mlp().cpu(), **arguments)
    with raises(TypeError, "bucket_cap"):
        herring.DistributedDataParallel(mlp(), bucket_cap=3)


class Bag(nn.Module):
    def __init__(self, sparse: bool):
        super().__init__()
        torch.manual_seed(5)
        self.table = nn.Embedding(40, 6, sparse=sparse)
        self.other = nn.Embedding(40, 6, sparse=sparse)
        self.head = nn.Linear(6, 4)

    def forward(self, words, both):
        found = self.table(words).mean(1)
        return self.head(found + self.other(words).mean(1) if both else found)


@case
def sparse_adam():
    rank, size = herring.rank(), herring.size()

    def words(step, r):
        generator = torch.Generator().manual_seed(100 * step + r)
        return torch.randint(0, 40, (4, 3), generator=generator)

    for wrap in ("ddp", "optimizer", "views"):
        model, reference = Bag(True), Bag(True)
        tables = [[n.table.weight, n.other.weight] for n in (model, reference)]
        optimizers = [torch.optim.SparseAdam(two, lr=0.01) for two in tables]
        heads = [torch.optim.Adam(n.head.parameters(), lr=0.01) for n in (model, reference)]
        closing = []
        if wrap == "optimizer":
            ddp = model
            optimizers[0] = herring.DistributedOptimizer(optimizers[0])
            heads[0] = herring.DistributedOptimizer(heads[0])
            closing = [optimizers[0], heads[0]]
        else:
            ddp = herring.DistributedDataParallel(model, gradient_as_bucket_view=wrap == "views")
            closing = [ddp]
        for step in range(5):
            for optimizer in (*optimizers, *heads):
                optimizer.zero_grad()
            # Only the last rank uses the second table, and no rank uses it in step 3.
            used = [step != 3 and r == size - 1 for r in range(size)]
            ddp(words(step, rank), used[rank]).square().mean().backward()
            for r in range(size):
                (reference(words(step, r), used[r]).square().mean() / size).backward()
            assert model.table.weight.grad.is_sparse
            mine_, theirs = model.table.weight.grad, reference.table.weight.grad.coalesce()
            assert torch.equal(mine_.coalesce().indices(), theirs.indices())
            assert (model.other.weight.grad is None) == (step == 3)
            for optimizer in (*optimizers, *heads):
                optimizer.step()
            for p, q in zip(model.parameters(), reference.parameters()):
                close(p, q, 1e-5)
        same_everywhere(model.parameters())
        for one in closing:
            one.close()


@case
def sparse_and_dense():
    """Training reveals that a table with sparse gradients is also used densely."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.weight = nn.Parameter(torch.randn(10, 4))

        def forward(self, words, dense):
            loss = F.embedding(words, self.weight, sparse=True).square().mean()
            return loss + self.weight.square().mean() if dense else loss

    rank, size = herring.rank(), herring.size()
    for step_of_dense in (0, 2):
        model, reference = Tied(), Tied()
        ddp = herring.DistributedDataParallel(model)
        for step in range(4):
            model.zero_grad()
            reference.zero_grad()
            dense = [step == step_of_dense and r == size - 1 for r in range(size)]
            ddp(torch.tensor([step, rank]), dense[rank]).backward()
            for r in range(size):
                (reference(torch.tensor([step, r]), dense[r]) / size).backward()
            assert model.weight.grad.is_sparse == (not any(dense)) or step == 0
            close(model.weight.grad.to_dense(), reference.weight.grad.to_dense(), 1e-6)
        ddp.close()


@case
def modified_in_place():
    """Autograd raises an error if a collective has overwritten a tensor that autograd needs."""
    import herring as arrays

    for write in (
        herring.allreduce,
        lambda t: herring.allreduce_async(t).wait(),
        herring.broadcast,
        arrays.allreduce,
        arrays.broadcast,
    ):
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        kept = y.detach()
        write(kept)
        with raises(RuntimeError, "modified by an inplace operation"):
            y.sum().backward()
    with torch.inference_mode():
        herring.allreduce(torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        herring.allreduce(x * 2)
        herring.allreduce(x * 2)
    assert sum("autograd graph" in str(w.message) for w in caught) == 1


@case
def gradients_of_collectives():
    """Compares gradients of collectives with one graph that has all ranks' inputs."""
    rank, size = herring.rank(), herring.size()

    def inputs(rows):
        generators = [torch.Generator().manual_seed(r) for r in range(size)]
        return [
            torch.randn(rows(r), 2, generator=g, dtype=torch.float64).requires_grad_()
            for r, g in enumerate(generators)
        ]

    def weigh(result, r):
        flat = result.square().flatten()
        return (flat * torch.arange(1.0, 1.0 + len(flat)).double()).sum() * (r + 1)

    rows = 2 * size
    blocks = torch.arange(rows).chunk(size)
    splits = [[(a + b) % 3 for b in range(size)] for a in range(size)]

    def pieces(every, r):
        return torch.cat([every[a].split(splits[a])[r] for a in range(size)])

    f = herring.functional
    for shape, call, expect in (
        (lambda r: rows, f.allreduce, lambda e, r: sum(e) / size),
        (lambda r: rows, lambda x: f.allreduce(x, "sum", name="s"), lambda e, r: sum(e)),
        (lambda r: rows, lambda x: f.broadcast(x, size - 1), lambda e, r: e[size - 1] * 1),
        (lambda r: r + 1, f.allgather, lambda e, r: torch.cat(e)),
        (lambda r: r, lambda x: f.allgather(x, name="g"), lambda e, r: torch.cat(e)),
        (lambda r: rows, f.reduce_scatter, lambda e, r: (sum(e) / size)[blocks[r]]),
        (
            lambda r: rows,
            lambda x: f.reduce_scatter(x, torch.distributed.ReduceOp.AVG),
            lambda e, r: (sum(e) / size)[blocks[r]],
        ),
        (lambda r: sum(splits[r]), lambda x: f.alltoall(x, splits[rank]), pieces),
        (lambda r: size, f.alltoall, lambda e, r: torch.cat([x[r : r + 1] for x in e])),
    ):
        every = inputs(shape)
        own = every[rank].detach().clone().requires_grad_()
        before = own.detach().clone()
        result = call(own)
        close(result, expect(every, rank), 1e-12)
        assert torch.equal(own, before)
        weigh(result, rank).backward()
        sum(weigh(expect(every, r), r) for r in range(size)).backward()
        theirs = every[rank].grad
        close(own.grad, torch.zeros_like(own) if theirs is None else theirs, 1e-12)
    with raises(herring.InvalidArgumentError, "'average' and 'sum'"):
        f.allreduce(torch.ones(3), "max")
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    (slope,) = torch.autograd.grad(f.allreduce(x, "sum").pow(3).sum(), x, create_graph=True)
    slope.sum().backward()
    close(x.grad, torch.full((2,), 6.0 * size**2 * size * (size + 1) / 2), 1e-6)


@case
def compiled_with_buffers():
    """The communication in forward stays out of compiled graphs."""
    model = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    reference = copy.deepcopy(model)
    inner, outer = herring.DistributedDataParallel(model), None
    plain = herring.DistributedDataParallel(reference)
    outer = torch.compile(inner, backend="aot_eager")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    train(outer, optimizers[0], mine, 3)
    train(plain, optimizers[1], mine, 3)
    for p, q in zip(model.state_dict().values(), reference.state_dict().values()):
        close(p, q, 1e-5)
    same_everywhere(model.parameters())


@case
def many_small_parameters():
    """A gradient costs few Python calls; the case counts calls, not seconds."""

    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(500)])

        def forward(self, x):
            return sum((x * p for p in self.parts), x)

    model = Small()
    ddp = herring.DistributedDataParallel(model)
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    for step in range(3):
        model.zero_grad()
        loss = ddp(torch.full((4,), herring.rank() + 1.0)).sum()
        sys.setprofile(count if step == 2 else None)
        loss.backward()
        sys.setprofile(None)
        for p in model.parameters():
            close(p.grad, torch.full((4,), (herring.size() + 1) / 2), 1e-6)
    assert 500 <= calls < 500 * 12, calls / 500


@case
def refused_by_one_rank():
    """All ranks learn at once that one rank has refused a call."""
    wrong = torch.zeros(4, 4).t()[:, :2] if herring.rank() == 1 else torch.zeros(4, 2)
    for call in (
        herring.allreduce,
        herring.broadcast,
        herring.allgather,
        herring.reduce_scatter,
        lambda t: herring.alltoall(t, [4] + [0] * (herring.size() - 1)),
    ):
        with raises(herring.HerringError, "not contiguous"):
            call(wrong)
    op = "max" if herring.rank() == 1 else "sum"
    with raises(herring.HerringError, "'average' and 'sum'"):
        herring.functional.allreduce(torch.zeros(2), op)
    herring.barrier()
