"""Cases for DistributedOptimizer and the broadcast of optimizer state."""

from __future__ import annotations

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import case, mine, mlp, raises, same_everywhere, train


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
    # Gradients accumulate, and one rank's pass touches no parameter.
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
        if kind != "LBFGS":  # same state and gradients: same result
            herring.DistributedOptimizer(optimizer, name=f"resumed.{kind}").step(closure)
            same_everywhere(model.parameters())
    # If the root has no optimizer state, the broadcast clears the others' state.
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if rank != 0:
        train(model, optimizer, mine, 1)
    herring.broadcast_optimizer_state(optimizer)
    assert not optimizer.state_dict()["state"]
    with raises(herring.MismatchError, "type"):
        other = torch.optim.Adam if rank else torch.optim.SGD
        herring.broadcast_optimizer_state(other(mlp().parameters(), lr=0.1))
