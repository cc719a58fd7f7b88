"""Training in partial rounds: replicas stay equal, nothing is lost, every optimizer works."""

from __future__ import annotations

import pathlib
import random
import tempfile
import time

import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring

from .support import case, close, everyones_batch, mine, mlp, raises, same_everywhere


@case
def partial_modes_train_equal_replicas() -> None:
    rank = herring.rank()
    makers = [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
    ]
    for number, sync in enumerate(["solo", "majority", herring.Quorum(2, staleness=2)]):
        model = herring.DistributedDataParallel(mlp(), sync=sync, digest_every=3)
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
    with raises(herring.InvalidArgumentError, "wire_dtype (bfloat16)"):
        herring.DistributedDataParallel(mlp(), sync="solo", wire_dtype="bfloat16")
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
    digests = herring.allgather_object(wrapped._partial.digest())
    assert len(set(digests)) == 1
    if herring.rank() == 1:
        with torch.no_grad():
            next(model.parameters()).view(-1)[0] += 1e-6
    digests = herring.allgather_object(wrapped._partial.digest())
    assert len(set(digests)) == 2
    list(wrapped.flush())
    wrapped.close()
