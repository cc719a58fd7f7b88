"""Cases for DistributedOptimizer and the broadcast of optimizer state."""

from __future__ import annotations

import copy
import importlib.util
import pickle

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
    with raises(herring.InvalidArgumentError, "named_parameters lacks "):
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


class Halved(torch.Tensor):
    """A tensor that holds others, as quantized states of optimizers do: the values over two."""

    @staticmethod
    def __new__(cls, halves):
        return torch.Tensor._make_wrapper_subclass(cls, halves.shape, dtype=halves.dtype)

    def __init__(self, halves):
        self.halves = halves

    def __tensor_flatten__(self):
        return ["halves"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["halves"])

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].halves)
        raise NotImplementedError(f"{function}")


# Plain pickle cannot read back tensors of these.
UNUSUAL = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex32,
    *(getattr(torch, name) for name in ("uint16", "uint32", "uint64") if hasattr(torch, name)),
]


@case
def objects_and_states_of_unusual_tensors():
    rank, size = herring.rank(), herring.size()
    for dtype in UNUSUAL:
        block = torch.arange(16, dtype=torch.uint8).view(dtype)
        mine = {"block": block, "end": block[1:], "of": torch.nn.Parameter(block, False), "r": rank}
        for sent in (herring.broadcast_object(mine, size - 1), herring.allgather_object(mine)[-1]):
            assert sent["r"] == size - 1 and type(sent["of"]) is torch.nn.Parameter
            assert sent["block"].dtype == dtype and sent["of"].dtype == dtype
            assert sent["block"].view(torch.uint8).tolist() == list(range(16))
            # Tensors that share memory still do.
            sent["block"].view(torch.uint8).zero_()
            assert not sent["end"].view(torch.uint8).any()
    if importlib.util.find_spec("cloudpickle"):  # It takes over for what pickle refuses.
        floats = torch.arange(4, dtype=torch.uint8).view(torch.float8_e4m3fn)
        sent, function = herring.broadcast_object((floats, lambda: rank))
        assert sent.view(torch.uint8).tolist() == [0, 1, 2, 3] and function() == 0

    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    if rank == size - 1:
        optimizer.state[weight] = {
            "eighths": torch.arange(8, dtype=torch.uint8).view(torch.float8_e4m3fn),
            "halves": Halved(torch.full((8,), 3.0)),
            "both": [torch.arange(4, dtype=torch.int16).view(UNUSUAL[-1]), torch.float8_e5m2],
        }
    herring.broadcast_optimizer_state(optimizer, size - 1)
    state = optimizer.state[weight]
    assert state["eighths"].dtype == torch.float8_e4m3fn
    assert state["eighths"].view(torch.uint8).tolist() == list(range(8))
    assert type(state["halves"]) is Halved and state["halves"].halves.tolist() == [3.0] * 8
    assert state["both"][0].view(torch.int16).tolist() == [0, 1, 2, 3]
    assert state["both"][1] is torch.float8_e5m2


@case
def optimizers_refuse_to_be_copied():
    model = mlp()
    optimizer = herring.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with raises(herring.InvalidArgumentError, "save or copy optimizer.state_dict()"):
            way(optimizer)
    train(model, optimizer, mine, 1)
    copy.deepcopy(optimizer.state_dict())
