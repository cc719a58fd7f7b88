"""Cases in which a rank has no gradients in a step, or an optimizer makes its step too early."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import herring.torch as herring

from .support import batch, case, close, mine, mlp, raises, same_everywhere, wrapped

STEPS = 5


def lacks(step: int, rank: int) -> bool:
    """Returns whether the batch of a rank has no target in this step; rank 2 begins so."""
    return (step + rank) % 3 == 2 and rank > 0


def zero_loss() -> torch.Tensor:
    return torch.zeros(3, requires_grad=True).sum()


def reference(model: nn.Module, optimizer: torch.optim.Optimizer, clip: bool = False) -> nn.Module:
    """Trains a model of its own on the batches of all ranks; who lacks a target adds zeros."""
    size = herring.size()
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            if not lacks(step, rank):
                inputs, labels = batch(step, rank)
                (F.cross_entropy(model(inputs), labels) / size).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


def compare(model: nn.Module, expected: nn.Module) -> None:
    same_everywhere(model.parameters())
    for p, q in zip(model.parameters(), expected.parameters()):
        close(p, q, 1e-5)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


@case
def batches_without_targets():
    """Backward passes that reach no parameter, or none at all, whatever is done before the step."""
    rank = herring.rank()
    for wrap in ("ddp", "module of ddp", "optimizer"):
        for how in ("backward", "no backward", "backward and clipping", "no backward but clipping"):
            model, expected = mlp(), mlp()
            clip = "clipping" in how
            reference(expected, momentum(expected), clip)
            kind = wrap.rpartition(" ")[2]
            call, optimizer, closing = wrapped(kind, model, momentum(model))
            if wrap == "module of ddp":
                call = model
            for step in range(STEPS):
                optimizer.zero_grad()
                inputs, labels = mine(step)
                output = call(inputs)
                if not lacks(step, rank):
                    F.cross_entropy(output, labels).backward()
                elif "no backward" not in how or (wrap == "module of ddp" and step < 3):
                    zero_loss().backward()
                del output
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            compare(model, expected)
            closing.close()


@case
def batches_without_a_forward_call():
    """Who has no target calls no forward pass, and perhaps no backward pass either."""
    rank, size = herring.rank(), herring.size()
    for how in ("backward", "nothing", "accumulated"):
        for buffers in (False, True):
            model, expected = mlp(), mlp()
            if buffers:
                model.register_buffer("of_rank_0", torch.zeros(1))
            ddp = herring.DistributedDataParallel(model)
            optimizer, other = momentum(model), momentum(expected)
            for step in range(1, STEPS + 1):
                optimizer.zero_grad()
                other.zero_grad()
                model.of_rank_0 = torch.full((1,), 10.0 * step + rank) if buffers else None
                if how == "accumulated":
                    with ddp.no_sync():
                        inputs, labels = mine(100 + step)
                        F.cross_entropy(ddp(inputs), labels).backward()
                    for r in range(size):
                        inputs, labels = batch(100 + step, r)
                        (F.cross_entropy(expected(inputs), labels) / size).backward()
                # Steps in which no rank has a target are among them.
                absent = [step > 1 and (lacks(step, r) or step == 4) for r in range(size)]
                if not absent[rank]:
                    inputs, labels = mine(step)
                    F.cross_entropy(ddp(inputs), labels).backward()
                elif how != "nothing":
                    zero_loss().backward()
                for r in range(size):
                    if not absent[r]:
                        inputs, labels = batch(step, r)
                        (F.cross_entropy(expected(inputs), labels) / size).backward()
                optimizer.step()
                other.step()
                if buffers and not all(absent):
                    assert model.of_rank_0.item() == 10.0 * step, model.of_rank_0
            compare(model, expected)
            ddp.close()


@case
def batches_without_targets_amp():
    rank = herring.rank()
    model, expected = mlp(), mlp()
    reference(expected, momentum(expected))
    ddp, optimizer = herring.DistributedDataParallel(model), momentum(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = mine(step)
        output = ddp(inputs)
        loss = zero_loss() if lacks(step, rank) else F.cross_entropy(output, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    compare(model, expected)
    ddp.close()


@case
def batches_without_targets_accumulated():
    """The last of several batches, whose pass averages, or one of those before has no target."""
    rank, size = herring.rank(), herring.size()
    for missing in (1, 3):
        model, expected = mlp(), mlp()
        ddp, optimizer, other = (
            herring.DistributedDataParallel(model),
            momentum(model),
            momentum(expected),
        )
        for step in range(3):
            optimizer.zero_grad()
            other.zero_grad()
            for part in range(4):
                number = 4 * step + part
                with ddp.no_sync() if part < 3 else contextlib.nullcontext():
                    inputs, labels = mine(number)
                    output = ddp(inputs)
                    absent = part == missing and rank == 1
                    (zero_loss() if absent else F.cross_entropy(output, labels)).backward()
                for r in range(size):
                    if not (part == missing and r == 1):
                        inputs, labels = batch(number, r)
                        (F.cross_entropy(expected(inputs), labels) / size).backward()
            optimizer.step()
            other.step()
        compare(model, expected)
        ddp.close()


@case
def batches_without_targets_of_several_models():
    """Two models with an optimizer each are trained in turn; one forward pass serves both."""
    rank = herring.rank()
    torch.manual_seed(3)
    makes, judges = nn.Linear(4, 6), nn.Linear(6, 1)
    wrapped = [herring.DistributedDataParallel(one) for one in (makes, judges)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (makes, judges)]
    for step in range(4):
        torch.manual_seed(100 * step + rank)
        made = wrapped[0](torch.randn(5, 4))
        optimizers[1].zero_grad()
        judged = wrapped[1](made.detach())
        (zero_loss() if lacks(step, rank) else judged.square().mean()).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        judged = wrapped[1](made) if step % 2 else judges(made)
        (zero_loss() if lacks(step + 1, rank) else judged.sum()).backward()
        optimizers[0].step()
        assert [one._reducer.steps for one in wrapped] == [step + 1] * 2
    same_everywhere([*makes.parameters(), *judges.parameters()])
    for one in wrapped:
        one.close()


@case
def batches_without_targets_and_buffers():
    """Buffers follow rank 0, checkpoints run again, closures may be evaluated several times."""
    rank = herring.rank()
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)), nn.Linear(8, 4)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, head

        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    model = Model()
    ddp = herring.DistributedDataParallel(model)
    for make in (
        lambda: torch.optim.Adam(model.parameters(), lr=0.01),
        lambda: torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3),
    ):
        optimizer = make()
        for step in range(4):
            evaluations = 0

            def closure(step=step, optimizer=optimizer):
                nonlocal evaluations
                evaluations += 1
                optimizer.zero_grad()
                inputs, labels = mine(step)
                output = ddp(inputs)
                absent = lacks(step + evaluations, rank)
                loss = zero_loss() if absent else F.cross_entropy(output, labels)
                if evaluations < 2 or not absent:
                    loss.backward()
                return torch.ones(())  # LBFGS decides by it, alike on all ranks.

            optimizer.step(closure)
    same_everywhere(model.parameters())
    ddp.close()


@case
def batches_without_targets_of_threads():
    """Two threads train a model each; who lacks a target may find both models waiting."""
    rank = herring.rank()
    models = [mlp(), mlp()]
    wrappers = [
        herring.DistributedDataParallel(one, name=f"thread{i}") for i, one in enumerate(models)
    ]
    failed = []

    def work(i: int) -> None:
        try:
            optimizer = momentum(models[i])
            for step in range(12):
                optimizer.zero_grad()
                inputs, labels = mine(step)
                output = wrappers[i](inputs)
                absent = lacks(step + i, rank)
                (zero_loss() if absent else F.cross_entropy(output, labels)).backward()
                optimizer.step()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for model, wrapper in zip(models, wrappers):
        same_everywhere(model.parameters())
        wrapper.close()


@case
def batches_that_a_rank_leaves_out():
    """Who skips a batch whole averages its next gradients, of the same parameters, with others'."""
    rank = herring.rank()
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    optimizer = momentum(model)
    for step in range(6):
        if step == (2 if rank == 1 else 5):
            continue
        optimizer.zero_grad()
        inputs, labels = mine(step)
        F.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()
    assert ddp._reducer.steps == 5
    same_everywhere(model.parameters())
    ddp.close()


@case
def passes_that_belong_to_no_step():
    """Forward passes of some ranks for a log, and steps of a second optimizer, add no rounds."""
    rank = herring.rank()
    model = mlp()
    ddp = herring.DistributedDataParallel(model)
    halves = list(model.parameters())
    optimizers = [torch.optim.SGD(half, lr=0.1) for half in (halves[:3], halves[3:])]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        inputs, labels = mine(step)
        if rank == 0:
            ddp(inputs)
        # The second half of the steps calls the module itself.
        F.cross_entropy((ddp if step < 2 else model)(inputs), labels).backward()
        if rank == 0:
            ddp(inputs)
        for optimizer in optimizers:
            optimizer.step()
        assert ddp._reducer.rounds == step + 1, (step, ddp._reducer.rounds)
    same_everywhere(model.parameters())
    ddp.close()


class Closure:
    """A closure as trainers write it: an object, and no function."""

    def __init__(self, run):
        self.run = run

    def __call__(self):
        return self.run()


@case
def steps_of_trainers():
    """A rank makes the optimizer's state before training, closures are objects, losses overflow."""
    rank = herring.rank()
    for wrap in ("ddp", "optimizer"):
        model = mlp()
        call, optimizer, closing = wrapped(wrap, model, momentum(model))
        inner = getattr(optimizer, "inner", optimizer)
        if rank == 0:
            for p in model.parameters():
                p.grad = torch.zeros_like(p)
            inner.step()
            inner.zero_grad()
        herring.broadcast_optimizer_state(inner)

        def loss(step, call=call, optimizer=optimizer):
            optimizer.zero_grad()
            inputs, labels = mine(step)
            found = F.cross_entropy(call(inputs), labels)
            found.backward()
            return found

        optimizer.step(Closure(lambda loss=loss: loss(0)))
        optimizer.step(closure=Closure(lambda loss=loss: loss(1)))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(2, 5):
            optimizer.zero_grad()
            inputs, labels = mine(step)
            found = F.cross_entropy(call(inputs), labels)
            if step == 3:
                found = zero_loss() if rank == 1 else found * float("inf")
            scaler.scale(found).backward()
            scaler.step(optimizer)  # Nobody makes it if gradients are infinite.
            scaler.update()
        same_everywhere(model.parameters())
        closing.close()


@case
def steps_of_some_ranks_only():
    """Gradients of different steps are never averaged."""
    rank, size = herring.rank(), herring.size()
    for wrap in ("ddp", "optimizer"):
        model = mlp()
        call, optimizer, closing = wrapped(wrap, model, momentum(model))
        for step in range(3):
            optimizer.zero_grad()
            inputs, labels = mine(step)
            F.cross_entropy(call(inputs), labels).backward()
            if rank < size - 1 or step < 2:
                optimizer.step()
        with raises(herring.MismatchError, f"rank {size - 1}: 2", "different numbers of steps"):
            F.cross_entropy(call(inputs), labels).backward()
        assert all(p.grad is None for p in model.parameters())
        closing.close()


@case
def local_steps_of_some_ranks_only():
    """A rank that steps with what it accumulated, while the others average, is found."""
    rank, size = herring.rank(), herring.size()
    model = mlp()
    ddp, optimizer = herring.DistributedDataParallel(model), momentum(model)

    def passes(step, averaged=True):
        optimizer.zero_grad()
        for part in range(1 + averaged):
            with contextlib.nullcontext() if part else ddp.no_sync():
                inputs, labels = mine(2 * step + part)
                F.cross_entropy(ddp(inputs), labels).backward()

    passes(0)
    optimizer.step()
    with raises(herring.MismatchError, f"rank {size - 1}: 2", "different numbers of steps"):
        passes(1, averaged=rank < size - 1)
        optimizer.step()
        passes(2)
    ddp.close()


def _step_of(optimizers):
    def hook(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    return hook


def _moves(parameter):
    with torch.no_grad():
        parameter.sub_(0.1 * parameter.grad)


def _frees(parameter):
    parameter.grad = None


@case
def steps_inside_the_backward_pass():
    """All ranks raise, although only the last rank's hooks are there; then training goes on."""
    rank, size = herring.rank(), herring.size()
    for wrap in ("ddp", "optimizer"):
        for hook in ("step", _moves, _frees):
            for step_of_culprit in (0, 2):  # with the provisional and with the final plan
                model = mlp()
                each = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
                call, optimizer, closing = wrapped(wrap, model, momentum(model))
                for step in range(3):
                    handles = []
                    if step == step_of_culprit and rank == size - 1:
                        handles = [
                            p.register_post_accumulate_grad_hook(
                                _step_of(each) if hook == "step" else hook
                            )
                            for p in model.parameters()
                        ]
                    inputs, labels = mine(step)
                    optimizer.zero_grad()
                    refused = (
                        raises(herring.InvalidArgumentError, "inside the backward pass")
                        if step == step_of_culprit
                        else contextlib.nullcontext()
                    )
                    with refused:
                        F.cross_entropy(call(inputs), labels).backward()
                    for handle in handles:
                        handle.remove()
                    if step != step_of_culprit:
                        optimizer.step()
                closing.close()


@case
def steps_inside_the_backward_pass_by_torch():
    """torch applies an optimizer inside the backward pass; inside `no_sync` that is local."""
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    ddp = herring.DistributedDataParallel(model)
    inputs, labels = mine(0)
    with raises(herring.InvalidArgumentError, "inside the backward pass", "after backward()"):
        F.cross_entropy(ddp(inputs), labels).backward()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    with ddp.no_sync():
        F.cross_entropy(ddp(inputs), labels).backward()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    ddp.close()


@case
def rounds_without_any_gradients():
    """If no rank contributes to a round, nobody has told a number of steps."""
    model = mlp()
    reducer = herring.GradientReducer(model.named_parameters(), name="nobody")
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        reducer.finish_step()
        assert reducer.contributors == herring.size()
        for _ in range(20):
            reducer.shadow()
            assert reducer.contributors == 0
        assert all((p.grad == 1).all() for p in model.parameters())
    reducer.close()
