"""Compares DistributedOptimizer with one process that has all ranks' data."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings

import torch
from torch import nn

import herring
import herring.horovod.torch as hvd

from .support import case, close, loss_of, mlp, raises, same


class Own(hvd.Compression.none):
    """A user-defined compressor, with which gradients are reduced tensor by tensor."""


OPTIONS = (
    {},
    {"op": hvd.Sum},
    {"compression": hvd.Compression.fp16},
    {"compression": hvd.Compression.fp8},
    {"compression": hvd.Compression.int8, "op": hvd.Sum},
    {"compression": Own},
    {"compression": Own, "op": hvd.Sum},
    {"gradient_predivide_factor": 2.0, "groups": 2},
    {"gradient_predivide_factor": 2.0, "compression": Own},
    {"backward_passes_per_step": 2},
    {"backward_passes_per_step": 2, "compression": Own},
)


def reference(steps: int, passes: int, scale: float) -> nn.Module:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            for rank in range(hvd.size()):
                (loss_of(model, step * passes + number, rank) * scale).backward()
        optimizer.step()
    return model


@case
def options():
    rank, size = hvd.rank(), hvd.size()
    for chosen in OPTIONS:
        model = mlp(rank + 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            named_parameters=model.named_parameters(),
            **chosen,
        )
        assert isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        passes = chosen.get("backward_passes_per_step", 1)
        for step in range(3):
            optimizer.zero_grad()
            for number in range(passes):
                loss_of(model, step * passes + number, rank).backward()
            if step == 1:
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 1e9)
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            scheduler.step()
        scale = 1.0 if chosen.get("op") == hvd.Sum else 1 / size
        tolerances = {
            hvd.Compression.fp16: 2e-3,
            hvd.Compression.fp8: 0.05,
            hvd.Compression.int8: 0.05,
        }
        tolerance = tolerances.get(chosen.get("compression"), 1e-4)
        close(model, reference(3, passes, scale), tolerance)
        same(model)
        guards(model, optimizer, passes)


def guards(model: nn.Module, optimizer: torch.optim.Optimizer, passes: int) -> None:
    for _ in range(passes):
        loss_of(model, 0, hvd.rank()).backward()
    raises(AssertionError, "zero_grad() was called after", optimizer.zero_grad)
    late = loss_of(model, 0, hvd.rank())
    raises(AssertionError, f"backward_passes_per_step is {passes}", late.backward)
    optimizer.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    assert any("skip_synchronize" in str(one.message) for one in caught)
    optimizer.zero_grad()
    optimizer.step()
    same(model)


@case
def arguments():
    model = mlp()
    named = list(model.named_parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    make = hvd.DistributedOptimizer
    raises(ValueError, "more than once: a", make, sgd, [("a", p) for _, p in named])
    raises(ValueError, "lacks 2", make, sgd, named[:2])
    raises(ValueError, "tuples (name, parameter)", make, sgd, model.parameters())
    raises(
        ValueError,
        "gradient_predivide_factor is 2",
        make,
        sgd,
        op=hvd.Sum,
        gradient_predivide_factor=2,
    )
    raises(ValueError, "backward_passes_per_step is 0", make, sgd, backward_passes_per_step=0)
    raises(ValueError, "op is 4", make, sgd, op=hvd.Max)
    raises(ValueError, "more than once", make, sgd, groups=[[named[0][1], named[0][1]]])
    optimizer = make(sgd)
    raises(ValueError, "already", make, optimizer)


@case
def two_losses():
    """Two backward passes reach disjoint parts of one optimizer's parameters."""
    rank, size = hvd.rank(), hvd.size()
    for op in (hvd.Average, hvd.Sum):
        parts, alone = [mlp(1), mlp(2)], [mlp(1), mlp(2)]
        optimizer, single = (
            torch.optim.SGD([p for part in those for p in part.parameters()], lr=0.1)
            for those in (parts, alone)
        )
        optimizer = hvd.DistributedOptimizer(optimizer, op=op)
        for step in range(3):
            optimizer.zero_grad()
            for part in parts:
                loss_of(part, step, rank).backward()
            optimizer.step()
            single.zero_grad()
            for part in alone:
                for r in range(size):
                    (loss_of(part, step, r) / (1 if op == hvd.Sum else size)).backward()
            single.step()
        for part, other in zip(parts, alone):
            close(part, other, 1e-4)
            same(part)


@case
def sparse_gradients():
    rank, size = hvd.rank(), hvd.size()
    for chosen in (
        {},
        {"op": hvd.Sum},
        {"sparse_as_dense": True},
        {"compression": Own},
        {"compression": Own, "sparse_as_dense": True},
    ):
        torch.manual_seed(3)
        table = nn.Embedding(size + 1, 3, sparse=True)
        expected = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), **chosen
        )
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([rank, size])).sum().backward()
            optimizer.step()
        moved = 3.0 if chosen.get("op") == hvd.Sum else 3 / size
        expected[:size] -= moved
        expected[size] -= moved * size
        assert torch.allclose(table.weight, expected, atol=1e-5), chosen


@case
def adasum_steps():
    if hvd.size() & (hvd.size() - 1):
        return
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), op=hvd.Adasum
    )
    for step in range(2):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        expected = [
            b + hvd.allreduce(-0.1 * p.grad, op=hvd.Adasum)
            for b, p in zip(before, model.parameters())
        ]
        optimizer.step()
        for p, e in zip(model.parameters(), expected):
            assert torch.allclose(p, e, atol=1e-6)
    same(model)
    raises(AssertionError, "Adasum", optimizer.skip_synchronize().__enter__)


@case
def later_parameters_and_closures():
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model[0].parameters(), lr=0.1), model[0].named_parameters()
    )
    optimizer.add_param_group({"params": list(model[2].parameters())})

    def closure() -> torch.Tensor:
        model.zero_grad()
        loss = loss_of(model, 0, hvd.rank())
        loss.backward()
        return loss

    losses = [hvd.allreduce(optimizer.step(closure).detach()).item() for _ in range(5)]
    assert losses[-1] < losses[0]
    same(model)


@case
def optimizer_state():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    if hvd.rank() == 0:  # as if this rank had read a checkpoint
        loss_of(model, 0, 0).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert [optimizer.state[p]["step"].item() for p in model.parameters()] == [1] * 4
    same(nn.ParameterList(optimizer.state[p]["exp_avg"] for p in model.parameters()))
    # A schedule continues with the received options, and state keeps its dtypes.
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    inner = torch.optim.SGD([weight], lr=1.0 if hvd.rank() == 0 else 5.0)
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.1)
    inner.state[weight]["moment"] = torch.full((2,), 0.001 + hvd.rank())
    wrapped = hvd.DistributedOptimizer(inner)
    hvd.broadcast_optimizer_state(wrapped, root_rank=0)
    for step in range(3):
        assert abs(wrapped.param_groups[0]["lr"] - 0.1**step) < 1e-9, wrapped.param_groups
        wrapped.step()
        schedule.step()
    moment = wrapped.state[weight]["moment"]
    assert moment.dtype == torch.float32 and (moment == torch.tensor(0.001)).all()
    assert wrapped.backward_passes_per_step == 1 and wrapped.op == hvd.Average


@case
def steps_after_synchronize():
    """Without skip_synchronize, gradients that the program has changed are averaged again."""
    rank, size = hvd.rank(), hvd.size()
    for compression in (hvd.Compression.none, Own):
        weight = nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), compression=compression
        )
        for skips in (True, False):
            optimizer.zero_grad()
            (weight * rank).sum().backward()
            optimizer.synchronize()
            assert weight.grad.item() == (size - 1) / 2
            weight.grad += 2 * rank
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with optimizer.skip_synchronize() if skips else contextlib.nullcontext():
                    optimizer.step()
            assert weight.grad.item() == (size - 1) / 2 + (2 * rank if skips else size - 1)
            assert len(caught) == (not skips), caught
            text = "optimizer.step() called without optimizer.skip_synchronize() context after"
            assert skips or text in str(caught[0].message), caught
            assert skips or caught[0].filename == __file__, caught


@case
def schedules_made_before_the_wrapper():
    for op in (hvd.Average, hvd.Adasum):
        if op == hvd.Adasum and hvd.size() & (hvd.size() - 1):
            continue
        model = mlp()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.1)
        optimizer = hvd.DistributedOptimizer(inner, op=op)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(2):
                loss_of(model, step, hvd.rank()).backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        # Whoever steps the schedule first is still warned.
        other = torch.optim.SGD(mlp().parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(other, 1, 0.1)
        hvd.DistributedOptimizer(other)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            schedule.step()
        assert "before `optimizer.step()`" in str(caught[0].message)


@case
def states_without_gradients():
    """As with Horovod, a broadcast of no state leaves zeros where there was no gradient."""
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))
    used.grad = torch.ones(3)
    parameters = [frozen, used, unused]
    for optimizer in (
        torch.optim.Adam(parameters),
        hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    ):
        unused.grad = None
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert frozen.grad is None and used.grad.tolist() == [1] * 3
        assert hvd.broadcast(unused.grad, root_rank=0).tolist() == [0] * 4


@case
def optimizers_refuse_to_be_copied():
    for op in (hvd.Average, hvd.Adasum):
        if op == hvd.Adasum and hvd.size() & (hvd.size() - 1):
            continue
        model = mlp()
        optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), op=op)
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            raises(
                herring.InvalidArgumentError, "save or copy optimizer.state_dict()", way, optimizer
            )
        loss_of(model, 0, hvd.rank()).backward()
        optimizer.step()
        copy.deepcopy(optimizer.state_dict())


@case
def objects_with_tensors_of_eight_bits():
    eighths = torch.arange(8, dtype=torch.uint8).view(torch.float8_e4m3fn)
    for sent in (hvd.broadcast_object({"all": eighths}), *hvd.allgather_object({"all": eighths})):
        assert sent["all"].dtype == torch.float8_e4m3fn
        assert sent["all"].view(torch.uint8).tolist() == list(range(8))


@case
def parameters_without_names():
    values = [torch.full((2, 3), float(hvd.rank())), torch.full((2,), float(hvd.rank()))]
    hvd.broadcast_parameters(iter(values), root_rank=hvd.size() - 1)
    assert all((value == hvd.size() - 1).all() for value in values)
    order = ["a", "b"] if hvd.rank() == 0 else ["b", "a"]
    named = {name: torch.full((2,), float(hvd.rank())) for name in order}
    hvd.broadcast_parameters(named, root_rank=0)
    assert all((value == 0).all() for value in named.values())


@case
def a_step_that_ends_early():
    """One rank's data end after the first of two passes; later steps have both passes again."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
    for step in range(4):
        last = step == 1 and hvd.rank() == hvd.size() - 1
        for _ in range(1 if last else 2):
            (weight * 10.0**step).sum().backward()
        optimizer.synchronize()
        ranks = 2 * hvd.size() - (step == 1)
        wanted = 10.0**step * ranks / hvd.size()
        assert torch.isclose(weight.grad, torch.tensor([wanted])).all(), (step, weight.grad)
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()


@case
def process_set_optimizer():
    members = hvd.add_process_set([0, hvd.size() - 1])
    model = mlp()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=members
    )
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    every = hvd.allgather_object(model[0].weight.tolist())
    assert every[0] == every[-1] != every[1]
    hvd.remove_process_set(members)


@case
def sync_batch_norm():
    rank, size = hvd.rank(), hvd.size()
    mine, single = hvd.SyncBatchNorm(8).double(), nn.BatchNorm1d(8).double()
    parts = [
        torch.randn(3 + r, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(r))
        for r in range(size)
    ]
    inputs, everything = parts[rank].clone().requires_grad_(), torch.cat(parts).requires_grad_()
    weights = torch.arange(8.0).double()
    found, expected = mine(inputs), single(everything)
    (found.pow(3) * weights).sum().backward()
    (expected.pow(3) * weights).sum().backward()
    first = sum(3 + r for r in range(rank))
    here = slice(first, first + 3 + rank)
    assert torch.allclose(found, expected[here])
    assert torch.allclose(inputs.grad, everything.grad[here])
    assert torch.allclose(mine.running_mean, single.running_mean)
    assert torch.allclose(mine.running_var, single.running_var)
    assert torch.allclose(mine.eval()(inputs), single.eval()(inputs))


class Fragile(torch.autograd.Function):
    """The identity function, whose backward pass may raise."""

    breaks = False

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fragile.breaks:
            raise ArithmeticError("broken")
        return gradient


@case
def broken_and_uneven_passes():
    rank = hvd.rank()
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.ModuleList([first, second])
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )

    def whole() -> torch.Tensor:
        return second(Fragile.apply(first(torch.full((1, 4), float(rank + 1))))).sum()

    for step in range(4):
        optimizer.zero_grad()
        Fragile.breaks = step == 2 and rank == 0
        if step == 2:
            # One rank's pass raises: all ranks give up the step and continue.
            kind = ArithmeticError if rank == 0 else hvd.HorovodInternalError
            raises(kind, "broken" if rank == 0 else "rank 0", whole().backward)
            continue
        whole().backward()
        optimizer.step()
    same(model)
    # Ranks use different parameters, and in the second step only rank 0 uses any.
    optimizer.zero_grad()
    (first if rank == 0 else second)(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        whole().backward()
    optimizer.step()
    same(model)
    first.weight.requires_grad_(False)
    optimizer.zero_grad()
    whole().backward()
    optimizer.step()
    first.weight.requires_grad_(True)
    optimizer.zero_grad()
    whole().backward()
    optimizer.step()
    same(model)
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=4.0)
    optimizer.zero_grad()
    scaler.scale(whole()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    same(model)


@case
def adversaries():
    """The loss of each of two optimizers passes through the other's parameters."""
    maker, judge = nn.Linear(4, 4), nn.Linear(4, 1)
    hvd.broadcast_parameters(maker.state_dict(), 0)
    hvd.broadcast_parameters(judge.state_dict(), 0)
    makes = hvd.DistributedOptimizer(
        torch.optim.SGD(maker.parameters(), lr=0.1), maker.named_parameters()
    )
    judges = hvd.DistributedOptimizer(
        torch.optim.SGD(judge.parameters(), lr=0.1),
        judge.named_parameters(),
        backward_passes_per_step=2,
    )
    for step in range(3):
        real = torch.full((2, 4), float(hvd.rank() + step))
        judges.zero_grad()
        judge(real).sum().backward()
        (-judge(maker(real).detach())).sum().backward()
        judges.step()
        makes.zero_grad()
        judge.requires_grad_(False)
        judge(maker(real)).sum().backward()
        makes.step()
        judge.requires_grad_(True)
    same(maker)
    same(judge)
    hvd.join()  # both optimizers take part
