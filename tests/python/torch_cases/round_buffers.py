"""Partial rounds of which each buffer of gradients has its own."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring import receive, send

from .support import case, close, everyones_batch, mine, mlp, raises, same_everywhere


@case
def buffers_have_rounds_of_their_own_and_lose_nothing() -> None:
    rank, size = herring.rank(), herring.size()
    modes = [
        ("solo", "herring"),
        ("majority", "herring"),
        (herring.Quorum(2, staleness=1), "herring"),
        (herring.Quorum(1, staleness=0), "herring"),
        ("solo", "doubling"),
        ("majority", "ring"),
    ]
    for number, (sync, algorithm) in enumerate(modes):
        delays = random.Random(10 * rank + number)
        model = torch.nn.Sequential(*(torch.nn.Linear(30, 30, bias=False) for _ in range(5)))
        with torch.no_grad():
            for layer in model:
                layer.weight.zero_()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        wrapper = herring.DistributedDataParallel(
            model, sync=sync, algorithm=algorithm, buffer_bytes=4000, digest_every=2
        )
        assert len(wrapper._partial._buffers) == 5
        steps = 4 + 3 * ((rank + number) % size)
        for step in range(steps):
            inner.zero_grad()
            # Gradients are whole numbers that do not depend on the weights; the pass takes a while.
            for layer in reversed(model):
                if delays.random() < 0.3:
                    time.sleep(delays.random() * 0.004)
                layer.weight.grad = None
            loss = sum(layer.weight.sum() for layer in model) * (1 + rank) * (1 + step)
            loss.backward()
            for _ in wrapper.rounds():
                inner.step()
                if step % 3 == 2:
                    break  # the next step takes the remaining rounds
        for _ in wrapper.flush():
            inner.step()
        same_everywhere(model.parameters())
        given = sum(herring.allgather_object((1 + rank) * steps * (steps + 1) / 2))
        for layer in model:
            close(layer.weight.detach(), torch.full((30, 30), -given / size), 1e-5)
        rounds = herring.allgather_object([one.rounds for one in wrapper._partial._buffers])
        assert all(one == rounds[0] for one in rounds), rounds
        assert wrapper.round == rounds[0][0] == len(wrapper.statistics.rounds)
        wrapper.close()


@case
def gradients_outlive_results_that_a_rank_owes() -> None:
    for buffer_bytes in (0, 1 << 20):
        _time_out_twice(buffer_bytes)


def _time_out_twice(buffer_bytes: int) -> None:
    rank, size = herring.rank(), herring.size()
    model = torch.nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapper = herring.DistributedDataParallel(
        model, sync=herring.Quorum(2), buffer_bytes=buffer_bytes
    )
    turn = np.zeros(1, np.int32)

    def backward(factor: int) -> None:
        inner.zero_grad()
        (wrapper(torch.ones(1, 8)).sum() * factor).backward()

    def step() -> None:
        for _ in wrapper.rounds():
            inner.step()

    if rank == 0:
        [buffer] = wrapper._partial._buffers
        take = buffer.series.take
        buffer.series.take = lambda result, _=None: take(result, timeout=0.05)
        backward(1)
        with raises(TimeoutError):
            step()  # nobody else is there yet, so this rank owes a result
        backward(10)
        assert not buffer.sent
        with raises(TimeoutError):
            step()  # waits for that result again, and contributes nothing
        with raises(herring.InvalidArgumentError, "were not exchanged"):
            wrapper(torch.ones(1, 8))
        buffer.series.take = take
        send(turn, 1)
        step()  # takes the result that it owes first; the gradients must outlive it
    elif rank == 1:
        receive(turn, 0)
        backward(100)
        step()
    for _ in wrapper.flush():
        inner.step()
    close(model.weight.detach(), torch.full((2, 8), -111.0 / size), 1e-6)
    wrapper.close()


@case
def buffers_leave_during_the_backward_pass() -> None:
    model, single = mlp(), mlp()
    wrapper = herring.DistributedDataParallel(
        model, sync=herring.Quorum(herring.size()), buffer_bytes=1
    )
    buffers = wrapper._partial._buffers
    assert [len(one.parameters) for one in buffers] == [1] * 6
    contributed = []
    # The first layer's gradient comes last: the other buffers have left by then.
    model[0].weight.register_hook(
        lambda _: contributed.extend(one.series.contributions[0] for one in buffers)
    )
    inputs, labels = mine(0)
    F.cross_entropy(wrapper(inputs), labels).backward()
    assert sum(contributed) >= 4, contributed
    assert all(one.series.contributions[0] == 1 for one in buffers)
    seen = 0
    for _ in wrapper.rounds():
        everyone, theirs = everyones_batch(0)
        F.cross_entropy(single(everyone), theirs).backward()
        for ours, reference in zip(model.parameters(), single.parameters()):
            close(ours.grad, reference.grad, 1e-5)
        seen += 1
    assert seen == 1
    list(wrapper.flush())
    wrapper.close()


@case
def buffers_and_accumulation_unused_parameters_and_passes_that_raise() -> None:
    model = mlp()
    spare = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("spare", spare)
    wrapper = herring.DistributedDataParallel(
        model, sync=herring.Quorum(herring.size()), buffer_bytes=2000
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    single = mlp()
    inputs, labels = mine(0)
    with wrapper.no_sync():
        (F.cross_entropy(wrapper(inputs[:4]), labels[:4]) / 2).backward()
    (F.cross_entropy(wrapper(inputs[4:]), labels[4:]) / 2).backward()
    everyone, theirs = everyones_batch(0)
    F.cross_entropy(single(everyone), theirs).backward()
    for _ in wrapper.rounds():
        assert spare.grad is None
        for ours, reference in zip(model[0].parameters(), single[0].parameters()):
            close(ours.grad, reference.grad, 1e-5)
        inner.step()
    inner.zero_grad()
    loss = F.cross_entropy(wrapper(inputs), labels)
    loss.backward(retain_graph=True)
    with raises(herring.InvalidArgumentError, "was produced again", "no_sync()"):
        loss.backward()
    with raises(herring.HerringError, "raised an error"):
        list(wrapper.rounds())
    # What had left counts; its result comes with the next step.
    F.cross_entropy(wrapper(inputs), labels).backward()
    for _ in wrapper.rounds():
        inner.step()
    for _ in wrapper.flush():
        inner.step()
    same_everywhere(model.parameters())
    wrapper.close()


@case
def buffers_with_an_optimizer_the_newest_results_and_16_bits() -> None:
    delays = random.Random(herring.rank())
    for results in ("every", "latest"):
        model = mlp()
        optimizer = herring.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01),
            model.named_parameters(),
            "bfloat16",
            sync="majority",
            results=results,
            buffer_bytes=1000,
        )
        for series in (1, 2):
            step = 0
            while optimizer.round < 8 * series:
                if delays.random() < 0.5:
                    time.sleep(delays.random() * 0.01)
                inputs, labels = mine(step)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), labels).backward()
                optimizer.step()
                step += 1
            optimizer.flush()
            same_everywhere(model.parameters())
        optimizer.close()


@case
def gradients_that_wait_are_flushed_once() -> None:
    model = torch.nn.Linear(40, 3, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    wrapper = herring.DistributedDataParallel(model, sync="majority", buffer_bytes=1 << 20)
    wrapper(torch.ones(1, 40)).sum().backward()  # contributed, and no round is asked for
    for _ in wrapper.flush():
        inner.step()
    close(model.weight.detach(), torch.full((3, 40), -1.0), 1e-6)
    wrapper.close()
