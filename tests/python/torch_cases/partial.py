"""Training in partial rounds: replicas stay equal, nothing is lost, every optimizer works."""

from __future__ import annotations

import contextlib
import gc
import pathlib
import random
import tempfile
import time
import warnings
import weakref

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring import allreduce, flush

from .support import case, close, everyones_batch, mine, mlp, raises, same_everywhere


@case
def partial_modes_train_equal_replicas() -> None:
    rank = herring.rank()
    makers = [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
    ]
    modes = [
        ("solo", "herring"),
        ("majority", "herring"),
        (herring.Quorum(2, staleness=2), "herring"),
        ("majority", "doubling"),
        ("solo", "ring"),
    ]
    for number, (sync, algorithm) in enumerate(modes):
        model = herring.DistributedDataParallel(
            mlp(), sync=sync, algorithm=algorithm, digest_every=3
        )
        optimizer = makers[number % 2](model.parameters())
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        step = 0
        while model.round < 12:
            inputs, labels = mine(step)
            if step % herring.size() == rank:
                time.sleep(0.01)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            for info in model.rounds():
                assert info.round == model.round
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            step += 1
        for info in model.flush():
            optimizer.step()
            final = info.last
        assert final and model.contributors == herring.size()
        assert model.round == 13
        same_everywhere(model.module.parameters())
        summary = model.statistics.summary()
        assert summary.startswith("13 rounds"), summary
        model.close()


@case
def partial_without_staleness_is_full() -> None:
    full, partial = mlp(), mlp()
    reference = herring.DistributedDataParallel(full)
    wrapped = herring.DistributedDataParallel(
        partial, sync=herring.Quorum(herring.size(), staleness=0)
    )
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, wrapped)]
    for step in range(5):
        inputs, labels = mine(step)
        for model, optimizer in zip((reference, wrapped), optimizers):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            for _ in model.rounds():
                optimizer.step()
    for theirs, ours in zip(full.parameters(), partial.parameters()):
        close(ours.detach(), theirs.detach(), 1e-5)
    for _ in wrapped.flush():
        pass  # nothing is pending, so these rounds add zeros
    wrapped.close()
    reference.close()


@case
def partial_optimizer_applies_every_round() -> None:
    model = mlp()
    seen = []
    optimizer = herring.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        sync="majority",
        each_round=lambda info: seen.append(info.round),
    )
    step = 0
    while optimizer.round < 6:
        if (step + herring.rank()) % 3 == 0:
            time.sleep(0.01)
        inputs, labels = mine(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step += 1
    optimizer.flush()
    assert seen == list(range(7)), seen
    same_everywhere(model.parameters())
    optimizer.close()


@case
def partial_ranks_that_make_different_numbers_of_steps_end_alike() -> None:
    rank, size = herring.rank(), herring.size()
    delays = random.Random(rank)
    for number, sync in enumerate(["solo", "majority", herring.Quorum(2, staleness=1)] * 2):
        wraps, model = number < 3, torch.nn.Linear(40, 3, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        if wraps:
            wrapper = forward = herring.DistributedDataParallel(model, sync=sync)
        else:
            forward, parameters = model, model.named_parameters()
            wrapper = herring.DistributedOptimizer(inner, parameters, sync=sync)
        steps = 3 + 4 * ((rank + number) % size)
        for step in range(steps):
            if delays.random() < 0.5:
                time.sleep(delays.random() * 0.01)
            inner.zero_grad()
            # Gradients are whole numbers that do not depend on the weights.
            (forward(torch.full((1, 40), 1.0 + rank)) * (1 + step)).sum().backward()
            if not wraps:
                wrapper.step()
                continue
            for _ in wrapper.rounds():
                inner.step()
                if step % 2:
                    break  # the next step takes the remaining rounds
        if wraps:
            for _ in wrapper.flush():
                inner.step()
        else:
            wrapper.flush()
        same_everywhere(model.parameters())
        sums = herring.allgather_object((1 + rank) * steps * (steps + 1) / 2)
        close(model.weight.detach(), torch.full((3, 40), -sum(sums) / size), 1e-5)
        rounds = herring.allgather_object(wrapper.round)
        assert set(rounds) == {wrapper.round} == {len(wrapper.statistics.rounds)}, rounds
        wrapper.close()


def _train(sync, seed: int, wraps_model: bool):
    """Trains in rounds with random delays, and returns the parameters and the wrapper."""
    delays = random.Random(seed * 100 + herring.rank())
    model = mlp()
    if wraps_model:
        wrapper = herring.DistributedDataParallel(model, sync=sync)
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        wrapper = herring.DistributedOptimizer(optimizer, model.named_parameters(), sync=sync)
    step = 0
    for rounds in (8, 14):
        while wrapper.round < rounds:
            if delays.random() < 0.4:
                time.sleep(delays.random() * 0.02)
            inputs, labels = mine(step)
            step += 1
            (wrapper if wraps_model else optimizer).zero_grad()
            F.cross_entropy((wrapper if wraps_model else model)(inputs), labels).backward()
            if not wraps_model:
                wrapper.step()
                continue
            for _ in wrapper.rounds():
                optimizer.step()
        if wraps_model:
            for _ in wrapper.flush():
                optimizer.step()
        else:
            wrapper.flush()
    wrapper.close()
    return [p.detach().clone() for p in model.parameters()], wrapper


@case
def partial_replays_give_the_same_bits() -> None:
    folder = tempfile.mkdtemp() if herring.rank() == 0 else None
    path = pathlib.Path(herring.broadcast_object(folder), "rounds.json")
    for wraps_model in (True, False):
        recorded, wrapper = _train("solo", 1, wraps_model)
        wrapper.statistics.save(path)
        staleness = wrapper.statistics.staleness
        assert sum(staleness.values()) > staleness[0], staleness
        for seed in (2, 3):
            replayed, again = _train(herring.Replay(path), seed, wraps_model)
            assert again.statistics.rounds == wrapper.statistics.rounds
            assert again.statistics.staleness == staleness
            for theirs, ours in zip(recorded, replayed):
                assert torch.equal(theirs.view(torch.int32), ours.view(torch.int32))


@case
def partial_a_refused_replay_leaves_the_model_free() -> None:
    model = mlp()
    try:
        herring.DistributedDataParallel(model, sync=herring.Replay("no-such-file"))
    except herring.InvalidArgumentError as error:
        assert "no-such-file" in str(error)
    else:
        raise AssertionError("there is no such recording")
    wrapped = herring.DistributedDataParallel(model, sync="majority")
    for _ in wrapped.flush():
        pass
    wrapped.close()


@case
def partial_accumulation_and_unused_parameters() -> None:
    model = mlp()
    spare = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("spare", spare)
    wrapped = herring.DistributedDataParallel(model, sync=herring.Quorum(herring.size()))
    single = mlp()
    inputs, labels = mine(0)
    with wrapped.no_sync():
        (F.cross_entropy(wrapped(inputs[:4]), labels[:4]) / 2).backward()
    (F.cross_entropy(wrapped(inputs[4:]), labels[4:]) / 2).backward()
    for _ in wrapped.rounds():
        assert spare.grad is None
    everyone, theirs = everyones_batch(0)
    F.cross_entropy(single(everyone), theirs).backward()
    for ours, reference in zip(model.parameters(), [spare, *single.parameters()]):
        if ours is not spare:
            close(ours.grad, reference.grad, 1e-5)
    list(wrapped.flush())
    wrapped.close()


@case
def partial_bad_input() -> None:
    rank = herring.rank()
    with raises(herring.InvalidArgumentError, "quorum is 9"):
        herring.DistributedDataParallel(mlp(), sync=herring.Quorum(9))
    with raises(herring.MismatchError, "sync='full'", "sync='solo'"):
        herring.DistributedDataParallel(mlp(), sync="solo" if rank == 1 else "full")
    with raises(herring.MismatchError, "sync='full'", "sync='majority'"):
        model = mlp()
        herring.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), sync="full" if rank else "majority"
        )
    wrapped = herring.DistributedDataParallel(mlp(), sync="majority")
    inputs, labels = mine(0)
    F.cross_entropy(wrapped(inputs), labels).backward()
    with raises(herring.InvalidArgumentError, "were not exchanged"):
        wrapped(inputs)
    with raises(herring.InvalidArgumentError, "join() is for sync='full'"):
        wrapped.join()
    for _ in wrapped.flush():
        pass
    wrapped.close()


@case
def partial_digests_find_a_replica_that_differs() -> None:
    # The check itself would end the job, so the case compares the digests directly.
    model = mlp()
    wrapped = herring.DistributedDataParallel(model, sync="solo")
    digests = herring.allgather_object(wrapped._partial._buffers[0].digest())
    assert len(set(digests)) == 1
    if herring.rank() == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-6
    digests = herring.allgather_object(wrapped._partial._buffers[0].digest())
    assert len(set(digests)) == 2
    list(wrapped.flush())
    wrapped.close()


def _step(model, optimizer, step: int) -> None:
    inputs, labels = mine(step)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    for _ in model.rounds():
        optimizer.step()


@case
def partial_unfrozen_parameters_wait_for_the_next_series() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    wrapped = herring.DistributedDataParallel(model, sync="majority", digest_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(wrapped, optimizer, 0)
    model[0].requires_grad_(True)
    refusal = "'0.weight' was frozen when this series of rounds began"
    with raises(herring.InvalidArgumentError, refusal):
        _step(wrapped, optimizer, 1)
    model[0].requires_grad_(False)
    _step(wrapped, optimizer, 1)
    model[0].requires_grad_(True)
    for _ in wrapped.flush():
        optimizer.step()
    assert torch.equal(model[0].weight, before)
    for step in range(2, 4):
        _step(wrapped, optimizer, step)
    for _ in wrapped.flush():
        optimizer.step()
    assert not torch.equal(model[0].weight, before)
    same_everywhere(model.parameters())
    wrapped.close()


@case
def partial_optimizer_refuses_parameters_that_are_unfrozen() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = herring.DistributedOptimizer(inner, model.named_parameters(), sync="majority")
    inputs, labels = mine(0)
    for flushes in (False, True):
        model[0].requires_grad_(True)
        F.cross_entropy(model(inputs), labels).backward()
        with raises(herring.InvalidArgumentError, "'0.weight' was frozen", "were cleared"):
            optimizer.flush() if flushes else optimizer.step()
        assert all(parameter.grad is None for parameter in model.parameters())
        model[0].requires_grad_(False)
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    optimizer.flush()
    model[0].requires_grad_(True)
    optimizer.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    assert model[0].weight.grad is not None
    optimizer.flush()
    same_everywhere(model.parameters())
    optimizer.close()


@case
def partial_replaced_parts_are_refused() -> None:
    model = mlp()
    wrapped = herring.DistributedDataParallel(model, sync="majority")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(wrapped, optimizer, 0)
    model[4] = torch.nn.Linear(32, 4)
    for flushed in (False, True):
        with raises(herring.InvalidArgumentError, "'4.weight' and 1 more were added after it"):
            _step(wrapped, optimizer, 1)
        if not flushed:
            list(wrapped.flush())
    wrapped.close()


@case
def partial_a_backward_pass_that_raises_gives_up_one_step() -> None:
    model = mlp()
    wrapped = herring.DistributedDataParallel(model, sync="majority", digest_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _step(wrapped, optimizer, 0)
    hook = model[0].weight.register_hook(lambda _: 1 / 0)
    with raises(ZeroDivisionError):
        _step(wrapped, optimizer, 1)
    with raises(herring.HerringError, "raised an error"):
        list(wrapped.rounds())
    assert all(parameter.grad is None for parameter in model.parameters())
    with raises(ZeroDivisionError):
        _step(wrapped, optimizer, 1)
    hook.remove()
    inputs, labels = mine(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = F.cross_entropy(wrapped(inputs), labels)
    told = [one for one in caught if "gave its step up" in str(one.message)]
    assert len(told) == 1 and told[0].filename == __file__, caught
    assert all(parameter.grad is None for parameter in model.parameters())
    loss.backward()
    for _ in wrapped.rounds():
        optimizer.step()
    fails = herring.rank() == 1  # the others need not hear of it
    hook = model[0].weight.register_hook(lambda gradient: 1 / 0 if fails else gradient)
    with raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        _step(wrapped, optimizer, 3)
    hook.remove()
    _step(wrapped, optimizer, 4)
    for _ in wrapped.flush():
        optimizer.step()
    same_everywhere(model.parameters())
    wrapped.close()


@case
def partial_a_dropped_wrapper_is_freed() -> None:
    model = mlp()
    for buffer_bytes in (0, 1000):
        wrapped = herring.DistributedDataParallel(model, sync="majority", buffer_bytes=buffer_bytes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _step(wrapped, optimizer, 0)
        for _ in wrapped.flush():
            optimizer.step()
        reducer, buffer = weakref.ref(wrapped._partial), weakref.ref(wrapped._partial._buffers[-1])
        del wrapped
        gc.collect()
        assert reducer() is None and buffer() is None
    same_everywhere(model.parameters())


@case
def partial_scaled_losses_train_equal_replicas() -> None:
    model = mlp()
    wrapped = herring.DistributedDataParallel(model, sync="majority", digest_every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        inputs, labels = mine(step)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(wrapped(inputs), labels)).backward()
        for _ in wrapped.rounds():
            scaler.step(optimizer)
            scaler.update()
    for _ in wrapped.flush():  # as in docs/partial.md: the last round may have no gradients
        if any(parameter.grad is not None for parameter in wrapped.parameters()):
            scaler.step(optimizer)
            scaler.update()
    same_everywhere(model.parameters())
    wrapped.close()


@case
def partial_optimizers_take_each_ranks_scale_out_of_its_gradients() -> None:
    """An overflow on one rank keeps its gradients out of a round, and nobody from a step."""
    size = herring.size()
    for fused in (False, True):
        for overflows in (1, 2):
            parameter = torch.nn.Parameter(torch.ones(4))
            optimizer = herring.DistributedOptimizer(
                torch.optim.SGD([parameter], lr=0.1, fused=fused), sync=herring.Quorum(size)
            )
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for step in range(3):
                optimizer.zero_grad()
                fails = step == overflows and herring.rank() == 1
                scaler.scale((parameter * (float("inf") if fails else 1.0)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.flush()
            close(parameter.detach(), torch.full((4,), 1 - 0.1 * (3 - 1 / size)), 1e-6)
            optimizer.close()


@case
def partial_optimizers_refuse_what_cannot_step_with_a_rounds_result() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    for kind in (torch.optim.LBFGS, torch.optim.SparseAdam):
        with raises(herring.InvalidArgumentError, kind.__name__, "sync='full'"):
            herring.DistributedOptimizer(kind([parameter]), sync="solo")
    optimizer = herring.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.1), sync="solo", buffer_bytes=1000
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(parameter.sum()).backward()
    with raises(herring.InvalidArgumentError, "buffer_bytes", "GradScaler"):
        scaler.step(optimizer)
    optimizer.close()


@case
def partial_arrays_may_be_tensors_of_any_kind() -> None:
    everybody = herring.Quorum(herring.size())
    for number, kind in enumerate([{"dtype": torch.bfloat16}, {"requires_grad": True}]):
        name = f"tensors{number}"
        tensor = torch.ones(4, **kind)
        allreduce(tensor, "sum", sync=everybody, name=name)
        close(tensor.detach(), torch.full((4,), float(herring.size())), 0)
        (result,) = flush(torch.full((4,), 2.0, **kind), name=name)
        values = torch.from_numpy(result)
        if "dtype" in kind:
            values = values.view(torch.bfloat16)
        close(values, torch.full((4,), 2.0 * herring.size()), 0)
