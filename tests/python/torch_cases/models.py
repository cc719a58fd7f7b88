"""Cases for DistributedDataParallel with many kinds of models and graphs."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import herring as of_arrays
import herring.torch as herring
from herring.torch import layout, reducer
from herring.torch.layout import Layout

from .steps import Branches
from .support import (
    batch,
    case,
    close,
    everyones_batch,
    mine,
    mlp,
    raises,
    same_everywhere,
    train,
    wrapped,
)


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
        ddp = herring.DistributedDataParallel(model, sparse="densify")
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
    """Ranks produce gradients in different orders, which also change from step to step."""
    rank, size = herring.rank(), herring.size()
    torch.manual_seed(2)
    model = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = model

        def forward(self, x, order):
            x = x.repeat(1, 4)
            for i in order:
                x = torch.tanh(self.layers[i](x))
            return x

    ddp = herring.DistributedDataParallel(Chain(), buffer_bytes=8192)
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
    # The recorded order is that of rank 0 in the first step, reversed: last layer first.
    expected = [i for layer in reversed(orders[0, 0].tolist()) for i in (2 * layer, 2 * layer + 1)]
    recorded = ddp._reducer._layout.order
    assert [i // 2 for i in recorded] == [i // 2 for i in expected], recorded


@case
def checkpoints():
    """Parameters accumulate several times in one pass, also in nested passes."""

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

    # With batches of one gradient, the second accumulation comes after the first was sent.
    for batch_bytes, reentrant, wrap in itertools.product(
        (1, layout._BATCH_BYTES), (True, False, None), ("ddp", "optimizer")
    ):
        batches = dict.fromkeys(("_BATCH_BYTES", "_GPU_BATCH_BYTES"), batch_bytes)
        with mock.patch.multiple(layout, **batches):
            model, reference = Loop(reentrant), Loop(None)
            if wrap == "ddp":
                ddp = herring.DistributedDataParallel(model)
                closing = ddp
            else:
                ddp = model
                closing = herring.DistributedOptimizer(
                    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
                )
            # The second accumulation is unexpected in step 1 and expected later.
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
                late = reentrant is True and batch_bytes == 1
                assert bool(closing._reducer._layout.deferred) == late
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
    """torch.autograd.grad passes through the output but does not start a round."""
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


@case
def layouts():
    """Parameters that are not contiguous get gradients with the same layout."""
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
def other_devices():
    """Tests gradients that cannot be views of the arena, for example on a GPU."""

    class Far(Layout):
        @staticmethod
        def reaches(parameter):
            return False

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.times = 0

        def forward(self, x):
            for _ in range(self.times):
                x = checkpoint(lambda v: v + self.net[0](v)[:, :16], x, use_reentrant=True)
            return self.net(x)

    for times in ((0, 0, 0, 0), (0, 2, 2, 0)):
        model, reference = Nested(), Nested()
        with mock.patch.object(reducer, "Layout", Far):
            ddp = herring.DistributedDataParallel(model, gradient_as_bucket_view=True)
            for step in range(4):
                for net in (model, reference):
                    net.times = times[step]
                    net.zero_grad(set_to_none=step != 2)
                inputs, labels = mine(step)
                F.cross_entropy(ddp(inputs.requires_grad_()), labels).backward()
                inputs, labels = everyones_batch(step)
                F.cross_entropy(reference(inputs.requires_grad_()), labels).backward()
                for index, (p, q) in enumerate(zip(model.parameters(), reference.parameters())):
                    assert not ddp._reducer._layout.holds(index, p.grad)
                    close(p.grad, q.grad, 1e-5)
            ddp.close()
    # An average arrives even if this rank has no gradient for the parameter.
    model = Branches()
    with mock.patch.object(reducer, "Layout", Far):
        ddp = herring.DistributedDataParallel(model, gradient_as_bucket_view=True)
        for _ in range(3):
            model.zero_grad()
            ddp(torch.ones(2, 16), [herring.rank() % 2]).sum().backward()
            for branch, ranks in (
                (0, herring.size() - herring.size() // 2),
                (1, herring.size() // 2),
            ):
                expected = torch.full((4,), 2.0 * ranks / herring.size())
                close(model.branches[branch].bias.grad, expected, 1e-6)
            assert model.branches[2].bias.grad is None


@case
def converted_after_wrapping():
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(ddp, optimizer, mine, 2)
    # After the conversion and back, .grad is the same tensor object at another address.
    model.double().float()
    train(ddp, optimizer, mine, 2, set_to_none=False)
    same_everywhere(model.parameters())
    model.double()
    with raises(herring.InvalidArgumentError, "was float32", "is float64 now"):
        ddp(mine(0)[0].double()).sum().backward()
    ddp.close()  # gives up the round in progress


@case
def compiled():
    """Wraps a compiled module, and compiles a wrapper; neither needs a C++ compiler."""
    for inside in (True, False):
        model, reference = mlp(), mlp()
        model.register_buffer("offset", torch.zeros(3))
        if inside:
            ddp = herring.DistributedDataParallel(torch.compile(model, backend="aot_eager"))
        else:
            ddp = torch.compile(herring.DistributedDataParallel(model), backend="aot_eager")
        for step in range(3):
            model.zero_grad()
            reference.zero_grad()
            inputs, labels = mine(step)
            F.cross_entropy(ddp(inputs), labels).backward()
            inputs, labels = everyones_batch(step)
            F.cross_entropy(reference(inputs), labels).backward()
            for p, q in zip(model.parameters(), reference.parameters()):
                close(p.grad, q.grad, 1e-5)


@case
def compiled_steps():
    """Whole steps and backward passes are compiled, in all the ways that torch has."""
    dynamo = torch._dynamo

    def train(wrap: str, how: str) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        call, optimizer, closing = wrapped(wrap, model, optimizer)

        def run(inputs, labels):
            optimizer.zero_grad()
            F.cross_entropy(call(inputs), labels).backward()
            optimizer.step()

        if how != "compiled backward":
            run = torch.compile(run, backend="aot_eager")
        for step in range(3):
            if how == "step":
                run(*mine(step))
            elif how == "step with compiled autograd":
                with dynamo.config.patch(compiled_autograd=True):
                    run(*mine(step))
            else:
                with dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                    run(*mine(step))
        closing.close()
        for p, q in zip(model.parameters(), expected.parameters()):
            close(p, q, 1e-5)

    expected = mlp()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        inputs, labels = everyones_batch(step)
        F.cross_entropy(expected(inputs), labels).backward()
        optimizer.step()
    for wrap, how in (
        ("ddp", "step"),
        ("ddp", "step with compiled autograd"),
        ("ddp", "compiled backward"),
        ("optimizer", "step"),
    ):
        dynamo.reset()
        train(wrap, how)


@case
def compiled_steps_in_rounds():
    """What torch.compile sees of partial rounds runs as it is."""
    dynamo = torch._dynamo

    def train(wrap: str, how: str, buffer_bytes: int) -> nn.Module:
        options = {"sync": herring.Quorum(herring.size()), "buffer_bytes": buffer_bytes}
        model = mlp()
        optimizer = inner = torch.optim.SGD(model.parameters(), lr=0.1)
        call = model
        if wrap == "ddp":
            call = herring.DistributedDataParallel(model, **options)
        else:
            optimizer = herring.DistributedOptimizer(inner, model.named_parameters(), **options)

        def run(inputs, labels):
            optimizer.zero_grad()
            F.cross_entropy(call(inputs), labels).backward()
            if wrap == "ddp":
                for _ in call.rounds():
                    optimizer.step()
            else:
                optimizer.step()

        dynamo.reset()
        if how == "step":
            run = torch.compile(run, backend="aot_eager")
        compiler = torch.compile(backend="aot_eager")
        for step in range(3):
            with (
                dynamo.compiled_autograd._enable(compiler)
                if how == "backward"
                else contextlib.nullcontext()
            ):
                run(*mine(step))
        if wrap == "ddp":
            for _ in call.flush():
                optimizer.step()
        else:
            optimizer.flush()
        return model

    for buffer_bytes in (0, 800):
        expected = train("ddp", "as it is", buffer_bytes)
        for wrap in ("ddp", "optimizer"):
            for how in ("step", "backward"):
                model = train(wrap, how, buffer_bytes)
                for p, q in zip(model.parameters(), expected.parameters()):
                    close(p, q, 1e-5)


@case
def compiled_functions_exchange():
    """Calls of a compiled function that exchange something run as they are, between its graphs."""
    values = torch.arange(4.0) + herring.rank()

    def work():
        found = [
            herring.allgather(values),
            herring.functional.alltoall(values.repeat(herring.size())),
            herring.gather(values, 0),
            herring.allgather_object(herring.rank()),
            of_arrays.allgather(values.numpy()),
            of_arrays.allreduce(values.numpy().copy(), sync="solo", name="compiled"),
        ]
        found += of_arrays.flush(values.numpy(), name="compiled")
        model = nn.Linear(4, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with herring.LocalSGD(model, optimizer, every=2):
            for _ in range(3):
                optimizer.zero_grad()
                model(values).sum().backward()
                optimizer.step()
        averaged = herring.DistributedOptimizer(optimizer)
        model(values).sum().backward()
        averaged.step()
        averaged.close()
        return found[:5], model.weight.detach()

    expected = work()
    torch._dynamo.reset()
    assert str(torch.compile(work, backend="aot_eager")()) == str(expected)


@case
def compiled_functions_of_the_program():
    """What the program decorates alike, with torch.no_grad here, is compiled as without Herring."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    @torch.no_grad()
    def evaluate(x):
        torch._dynamo.graph_break()
        return torch.sin(x)

    torch._dynamo.reset()
    torch.compile(lambda x: evaluate(x), backend=backend)(torch.ones(3))
    assert len(graphs) == 1


@case
def compiled_as_one_graph():
    """The module can be one graph. The wrapper cannot, and torch's error says what to do."""
    inputs, labels = mine(0)
    whole = torch.compile(mlp(), backend="aot_eager", fullgraph=True)
    ddp = herring.DistributedDataParallel(whole)
    F.cross_entropy(ddp(inputs), labels).backward()
    same_everywhere([p.grad for p in whole.parameters()])
    ddp.close()
    ddp = herring.DistributedDataParallel(mlp())
    with raises(torch._dynamo.exc.Unsupported, "compile the module and then wrap it"):
        torch.compile(ddp, backend="aot_eager", fullgraph=True)(inputs)
    ddp.close()
