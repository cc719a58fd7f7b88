"""Cases for gradients that travel in 8 bits with a scale for each 32 numbers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import case, close, everyones_batch, mine, mlp, raises, same_everywhere, train
from .wrapper import Fails

PAIR = ("fp8", torch.bfloat16)  # averages come back in the second
WIRES = ("fp8", torch.float8_e5m2, "int8", PAIR)


@case
def eight_bits():
    sent, received, losses = {}, {}, {}
    for wire in (None, *WIRES):
        model = mlp(width=512)
        ddp = herring.DistributedDataParallel(model, wire_dtype=wire)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        train(ddp, optimizer, mine, 2)
        herring.barrier()
        before = herring.stats()
        train(ddp, optimizer, mine, 20)
        after = herring.stats()
        sent[wire], received[wire] = (
            after[way] - before[way] for way in ("bytes_sent", "bytes_received")
        )
        same_everywhere(model.parameters())
        inputs, labels = everyones_batch(0)
        losses[wire] = F.cross_entropy(model(inputs), labels).item()
        ddp.close()
    for wire in WIRES:
        assert abs(losses[wire] - losses[None]) < 0.03, losses
        if herring.num_nodes() > 1:
            assert 0.25 < sent[wire] / sent[None] < 0.3, sent
            least = 0.49 if wire == PAIR else 0.25
            assert least < received[wire] / received[None] < least + 0.06, received
        else:
            assert losses[wire] == losses[None]


class Constant(nn.Module):
    """A model whose gradient is the same in each step, and differs between ranks."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        random = torch.Generator().manual_seed(5)
        sizes = ((70, 31), (993,), (1,))
        self.weights = nn.ParameterList([torch.zeros(size, dtype=dtype) for size in sizes])
        of = [
            [torch.randn(size, generator=random) for size in sizes] for _ in range(herring.size())
        ]
        self.mine = [one.to(dtype) for one in of[herring.rank()]]
        self.mean = [torch.stack(parts).mean(0) for parts in zip(*of)]

    def forward(self):
        return sum((w * g).sum() for w, g in zip(self.weights, self.mine))


def drift(steps, accumulate=1, **options):
    """Returns how far the mean of the averages is from the mean of the gradients, squared."""
    model = Constant()
    ddp = herring.DistributedDataParallel(model, **options)
    sums = [torch.zeros_like(w) for w in model.weights]
    for _ in range(steps):
        ddp.zero_grad()
        for _ in range(accumulate - 1):
            with ddp.no_sync():
                ddp().backward()
        ddp().backward()
        for total, weight in zip(sums, model.weights):
            total += weight.grad / accumulate
    same_everywhere(sums)
    ddp.close()
    pairs = zip(sums, model.mean)
    return sum((total / steps - mean).square().sum().item() for total, mean in pairs)


@case
def eight_bits_make_up_for_what_they_lose():
    for wire in WIRES:
        for accumulate in (1, 3):
            fed = drift(60, accumulate, wire_dtype=wire)
            lost = drift(60, accumulate, wire_dtype=wire, error_feedback=False)
            if herring.num_nodes() == 1:
                assert fed == lost < 1e-9
            else:
                assert fed < lost / 2, (wire, accumulate, fed, lost)


@case
def eight_bits_with_both_wrappers():
    """The optimizer's wrapper gives the same bits as the module's."""
    models = []
    for wrap in ("module", "optimizer"):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        if wrap == "module":
            wrapper = ddp = herring.DistributedDataParallel(model, wire_dtype="fp8")
            train(ddp, optimizer, mine, 5)
        else:
            wrapper = herring.DistributedOptimizer(
                optimizer, model.named_parameters(), wire_dtype="fp8"
            )
            train(model, wrapper, mine, 5)
        models.append([*model.parameters(), *wrapper.residuals().values()])
        wrapper.close()
    for one, other in zip(*models):
        assert torch.equal(one, other)


@case
def eight_bits_residuals():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.LazyLinear(5))
    model(torch.zeros(1, 3, 6, 6))
    model = model.to(memory_format=torch.channels_last)
    ddp = herring.DistributedDataParallel(model, wire_dtype="int8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(wrapper):
        torch.manual_seed(herring.rank())
        optimizer.zero_grad()
        wrapper(torch.randn(4, 3, 6, 6)).square().sum().backward()
        optimizer.step()

    step(ddp)
    step(ddp)
    found = ddp.residuals()
    assert list(found) == [name for name, _ in reversed(list(model.named_parameters()))] or set(
        found
    ) == {name for name, _ in model.named_parameters()}
    same_everywhere([value.contiguous() for value in found.values()])
    anything = any(value.any() for value in found.values())
    assert anything == (herring.num_nodes() > 1), found
    for name, parameter in model.named_parameters():
        assert found[name].shape == parameter.shape and found[name].dtype == torch.float32

    # What a checkpoint has kept is there again, whatever ranks have which part of it.
    ddp.load_residuals({})
    assert not any(value.any() for value in ddp.residuals().values())
    ddp.load_residuals(found)
    for name, value in ddp.residuals().items():
        close(value, found[name], 1e-6)
    with raises(herring.InvalidArgumentError, "nobody", "load_residuals"):
        ddp.load_residuals({"nobody": torch.zeros(1)})
    with raises(herring.InvalidArgumentError, "(8, 3, 3, 3)"):
        ddp.load_residuals({"0.weight": torch.zeros(3)})
    ddp.close()

    # Frozen parameters that are trained later, and others that are not any more, change the plan.
    model[0].requires_grad_(False)
    ddp = herring.DistributedDataParallel(model, wire_dtype="int8")
    step(ddp)
    step(ddp)
    before = ddp.residuals()
    assert set(before) == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    step(ddp)
    step(ddp)
    assert set(ddp.residuals()) == set(found)
    ddp.close()

    ddp = herring.DistributedDataParallel(model, wire_dtype="int8", error_feedback=False)
    step(ddp)
    assert ddp.residuals() == {}
    ddp.load_residuals(found)
    ddp.close()
    ddp = herring.DistributedDataParallel(model)
    assert ddp.residuals() == {}
    ddp.close()


@case
def eight_bits_of_16_bit_models():
    for dtype in (torch.bfloat16, torch.float16):
        model = Constant(dtype)
        ddp = herring.DistributedDataParallel(model, wire_dtype="fp8")
        for _ in range(3):
            ddp.zero_grad()
            ddp().backward()
        for weight, mean in zip(model.weights, model.mean):
            assert weight.grad.dtype == dtype
            close(weight.grad.float(), mean, 0.15)
        same_everywhere([weight.grad.float() for weight in model.weights])
        ddp.close()


@case
def eight_bits_keep_infinities():
    """A scaler of losses sees what is not finite, and the next step is right again."""
    for wire in ("int8", herring.TopK(0.1)):
        model = Constant()
        ddp = herring.DistributedDataParallel(model, wire_dtype=wire)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = ddp()
            if step == 1 and herring.rank() == 0:
                loss = loss * float("inf")
            before = model.weights[1].detach().clone()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped = torch.equal(before, model.weights[1])
            assert skipped == (step == 1), (wire, step)
            same_everywhere(model.parameters())
        assert all(value.isfinite().all() for value in ddp.residuals().values())
        ddp.close()


@case
def only_the_largest_numbers():
    """With either wrapper, and as a hook's buckets, training goes on with a few numbers a step."""
    wire = herring.TopK(0.05)
    inputs, labels = everyones_batch(0)
    losses, digests = {}, {}
    for how in ("all", "module", "optimizer"):
        model = mlp(width=256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if how == "optimizer":
            step, wrapper = (
                model,
                herring.DistributedOptimizer(optimizer, model.named_parameters(), wire_dtype=wire),
            )
            optimizer = wrapper
        else:
            step = wrapper = herring.DistributedDataParallel(
                model, wire_dtype=wire if how == "module" else None
            )
        train(step, optimizer, mine, 2)
        herring.barrier()
        before = herring.stats()["bytes_sent"]
        train(step, optimizer, mine, 30)
        sent = herring.stats()["bytes_sent"] - before
        same_everywhere(model.parameters())
        losses[how] = F.cross_entropy(model(inputs), labels).item()
        digests[how] = [*model.parameters(), *wrapper.residuals().values()]
        if how == "all":
            everything = sent
        elif herring.num_nodes() > 1:
            assert sent < 0.12 * everything, (sent, everything)
            assert any(value.any() for value in wrapper.residuals().values())
        wrapper.close()
    for one, other in zip(digests["module"], digests["optimizer"]):
        assert torch.equal(one, other)
    start = F.cross_entropy(mlp(width=256)(inputs), labels).item()
    assert losses["module"] < start - 0.5 * (start - losses["all"]), (start, losses)


class Turned(nn.Module):
    """A model with constant gradients, which come in another order than its parameters."""

    def __init__(self):
        super().__init__()
        random = torch.Generator().manual_seed(6)
        sizes = (40_000, 30_000, 20_000)
        self.weights = nn.ParameterList([torch.zeros(size) for size in sizes])
        of = [torch.randn(herring.size(), size, generator=random) for size in sizes]
        self.mine = [one[herring.rank()] for one in of]
        self.mean = [one.mean(0) for one in of]

    def forward(self, fails=False):
        weights = list(self.weights)
        if fails:
            weights[1] = Fails.apply(weights[1])
        pairs = list(zip(weights, self.mine))
        return sum((weight * gradient).sum() for weight, gradient in reversed(pairs))


@case
def what_is_left_follows_its_parameters():
    """A new plan cuts other slices, so that other ranks of a node send a parameter."""
    model = Turned()
    ddp = herring.DistributedDataParallel(model, wire_dtype=herring.TopK(0.1))
    totals = [torch.zeros_like(weight) for weight in model.weights]
    for step in range(4):
        ddp.zero_grad()
        ddp().backward()
        left = ddp.residuals()
        for i, (weight, mean) in enumerate(zip(model.weights, model.mean)):
            totals[i] += weight.grad
            close(totals[i] + left[f"weights.{i}"], (step + 1) * mean, 0.01)
    same_everywhere(totals)
    ddp.close()


@case
def what_a_dropped_round_has_sent_is_kept():
    """A step of which one rank raises, and one that is made again with another plan."""
    model = Turned()
    model.weights[2].requires_grad_(False)
    ddp = herring.DistributedDataParallel(model, wire_dtype=herring.TopK(0.1))
    totals = [torch.zeros_like(weight) for weight in model.weights]
    steps = [0, 0, 0]
    for step in range(6):
        if step == 4:
            model.weights[2].requires_grad_(True)
        ddp.zero_grad()
        if step == 2:
            before = ddp.residuals()
            with raises(Exception, "planted" if herring.rank() == 0 else "rank 0 did not finish"):
                ddp(fails=herring.rank() == 0).backward()
            ddp()  # gives the round up
            for name, left in ddp.residuals().items():
                assert torch.equal(left, before[name]), name
            continue
        ddp().backward()
        left = ddp.residuals()
        for i, weight in enumerate(model.weights[: len(left)]):
            totals[i] += weight.grad
            steps[i] += 1
            close(totals[i] + left[f"weights.{i}"], steps[i] * model.mean[i], 0.01)
    assert steps == [5, 5, 2], steps
    same_everywhere(totals)
    ddp.close()


@case
def eight_bits_refuse():
    model = nn.Linear(3, 3).double()
    with raises(herring.InvalidArgumentError, "float64", "fp8"):
        herring.DistributedDataParallel(model, wire_dtype="fp8")
    with raises(herring.InvalidArgumentError, "float64", "topk:0.01"):
        herring.DistributedDataParallel(model, wire_dtype=herring.TopK())
    with raises(herring.InvalidArgumentError, "solo", "topk:0.05"):
        herring.DistributedDataParallel(mlp(), sync="solo", wire_dtype=herring.TopK(0.05))
    with raises(herring.InvalidArgumentError, "TopK", "bfloat16"):
        herring.DistributedDataParallel(mlp(), wire_dtype="largest")
    with raises(herring.InvalidArgumentError, "fp8", "float32"):
        herring.DistributedDataParallel(mlp(), wire_dtype=(torch.bfloat16, "fp8"))
    with raises(herring.InvalidArgumentError, "solo", "fp8"):
        herring.DistributedDataParallel(mlp(), sync="solo", wire_dtype="fp8")
    if herring.size() > 1:
        with raises(herring.MismatchError, "fp8", "int8"):
            herring.DistributedDataParallel(mlp(), wire_dtype="int8" if herring.rank() else "fp8")
    ddp = herring.DistributedDataParallel(mlp(), wire_dtype="fp8")
    ddp(mine(0)[0]).sum().backward()
    assert set(ddp.residuals()) == {name for name, _ in ddp.module.named_parameters()}
    ddp.close()
