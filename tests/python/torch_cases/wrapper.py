"""Cases for DistributedDataParallel: buffers, interface, and errors."""

from __future__ import annotations

import gc
import os
import warnings
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring.base.units import ranks_text

from .support import case, mine, mlp, raises, same_everywhere, train, wrapped


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("planted")


class Planted(nn.Module):
    """Raises in the backward pass if armed, after some gradients have been produced."""

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
                if step in (0, 2):  # with the provisional and with the final plan
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
    ddp(mine(0)[0])  # in eval mode or no_grad, a rank may call forward alone
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
    torch.save(ddp, os.devnull)
    with raises(herring.InvalidArgumentError, "already averaged", "0.weight"):
        herring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
        )
    ddp.close()
    gc.disable()
    try:
        dropped = [herring.DistributedDataParallel(model)]
        dropped.append(dropped)  # only the garbage collector frees it
        del dropped
        herring.DistributedDataParallel(model).close()
    finally:
        gc.enable()
    for nothing in (mlp().requires_grad_(False), nn.ReLU()):
        with raises(herring.InvalidArgumentError, "no parameter", "requires a gradient"):
            herring.DistributedDataParallel(nothing)
    frozen = torch.optim.SGD(mlp().requires_grad_(False).parameters(), lr=0.1)
    with raises(herring.InvalidArgumentError, "none of the optimizer's parameters"):
        herring.DistributedOptimizer(frozen)
    with raises(herring.InvalidArgumentError, "must be a torch.nn.Module", "not its parameters"):
        herring.DistributedDataParallel(mlp().parameters())
    with raises(herring.InvalidArgumentError, "is a module (Sequential)", "state_dict()"):
        herring.broadcast_parameters(mlp())
    odd = nn.Linear(3, 3).to(torch.complex64)
    with raises(herring.InvalidArgumentError, "'weight'", "complex"):
        herring.DistributedDataParallel(odd)


@case
def mismatches():
    rank, size = herring.rank(), herring.size()
    others = ranks_text(range(size - 1))
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
def interrupted_cells():
    """After Ctrl-C in a wait for averages, as in a notebook, all ranks hear what differs."""
    for wrap in ("ddp", "optimizer"):
        model = mlp()

        def run(step, calls, model=model):
            calls[1].zero_grad()
            inputs, labels = mine(step)
            F.cross_entropy(calls[0](inputs), labels).backward()
            calls[1].step()

        calls = wrapped(wrap, model, torch.optim.SGD(model.parameters(), lr=0.1))
        plan = calls[2]._reducer._planned.plan
        interrupted = herring.rank() == 0
        if interrupted:
            with mock.patch.object(plan, "wait", side_effect=KeyboardInterrupt):
                with raises(KeyboardInterrupt):
                    run(0, calls)
        else:
            run(0, calls)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with raises(herring.MismatchError, "different numbers of steps", "wrap the model"):
                run(1, calls)
        told = [one for one in caught if "was interrupted" in str(one.message)]
        assert len(told) == interrupted, caught
        calls[2].close()
        calls = wrapped(wrap, model, torch.optim.SGD(model.parameters(), lr=0.1))
        run(2, calls)
        same_everywhere(model.parameters())
        calls[2].close()
