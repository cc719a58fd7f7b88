"""Partial rounds of which late ranks apply the newest result only, and rounds in 16 bits."""

from __future__ import annotations

import random
import time

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring import receive, send
from herring.partial import PartialReduction

from .support import case, close, everyones_batch, mine, mlp, raises, same_everywhere


@case
def latest_results_leave_out_what_a_newer_one_has_followed() -> None:
    rank, size = herring.rank(), herring.size()
    for algorithm in ("herring", "doubling"):
        series = PartialReduction(
            4, "float64", sync="solo", op="sum", algorithm=algorithm, results="latest"
        )
        with raises(herring.InvalidArgumentError, "digests are not compared"):
            series.digest(1)
        work, ended = torch.empty(4, dtype=torch.float64), np.zeros(1, np.int64)
        if rank == 0:
            for _ in range(3):
                series.allreduce(work.fill_(1.0))
            ended[0] = series.rounds
            send(ended, size - 1)
        elif rank == size - 1:
            receive(ended, 0)
            while series.ready < ended[0]:  # results of rounds that have ended without this rank
                time.sleep(0.001)
            result = torch.empty_like(work)
            first, *more = series.step(work.fill_(10.0), result)
            assert first.round + 1 >= ended[0] >= 3, (first.round, ended)
            assert [first.round, *(one.round for one in more)][-1] == series.rounds - 1
            assert result[0] > 0
        seen = [info.round for info in series.flush(work.zero_())]
        assert seen == sorted(set(seen)) and seen[-1] == series.rounds - 1, seen
        produced, counted = series.contributions
        assert produced == counted
        assert len(series.statistics.rounds) == series.rounds
        rounds = herring.allgather_object(series.rounds)
        assert len(set(rounds)) == 1, rounds


def _train(wrapper, model, inner, rounds: int, delays: random.Random) -> None:
    step = 0
    while wrapper.round < rounds:
        if delays.random() < 0.5:
            time.sleep(delays.random() * 0.02)
        inputs, labels = mine(step)
        inner.zero_grad()
        if wrapper is model:
            F.cross_entropy(wrapper(inputs), labels).backward()
            for _ in wrapper.rounds():
                assert next(model.parameters()).grad.dtype == torch.float32
                inner.step()
        else:
            F.cross_entropy(model(inputs), labels).backward()
            wrapper.step()
        step += 1


@case
def replicas_that_apply_the_newest_results_are_averaged() -> None:
    delays = random.Random(herring.rank())
    modes = [("solo", "herring", 3), ("majority", "doubling", 1), ("solo", "ring", 0)]
    for number, (sync, algorithm, every) in enumerate(modes):
        options = {"sync": sync, "algorithm": algorithm, "results": "latest"}
        model = mlp()
        inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        if number % 2:
            wrapper = herring.DistributedOptimizer(
                inner, model.named_parameters(), synchronize_every=every, **options
            )
            forward = model
        else:
            wrapper = forward = herring.DistributedDataParallel(
                model, synchronize_every=every, **options
            )
        averages = 0
        plain = wrapper._partial._average

        def counted(what: str, plain=plain, model=model) -> None:
            nonlocal averages
            plain(what)
            averages += 1
            same_everywhere(model.parameters())

        wrapper._partial._average = counted
        for series in (1, 2):
            _train(wrapper, forward, inner, 10 * series, delays)
            if number % 2:
                wrapper.flush()
            else:
                for _ in wrapper.flush():
                    inner.step()
            same_everywhere(model.parameters())
        rounds = herring.allgather_object(wrapper.round)
        assert len(set(rounds)) == 1 and rounds[0] >= 21, rounds
        assert averages == 2 + (rounds[0] // every if every else 0), (averages, rounds)
        assert len(wrapper.statistics.rounds) == rounds[0]
        wrapper.close()


@case
def a_loop_that_is_left_averages_at_the_next_step() -> None:
    model = mlp()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = herring.DistributedDataParallel(
        model, sync="majority", results="latest", synchronize_every=1
    )
    for step in range(3):
        inputs, labels = mine(step)
        inner.zero_grad()
        F.cross_entropy(wrapper(inputs), labels).backward()
        for _ in wrapper.rounds():
            inner.step()
            if herring.rank() == 0:
                break
    for _ in wrapper.flush():
        inner.step()
    same_everywhere(model.parameters())
    wrapper.close()


@case
def rounds_in_16_bits_train_equal_replicas() -> None:
    for wire_dtype, algorithm in [
        ("bfloat16", "herring"),
        (torch.float16, "herring"),
        ("bfloat16", "doubling"),
    ]:
        model = mlp()
        wrapper = herring.DistributedDataParallel(
            model, sync="majority", algorithm=algorithm, wire_dtype=wire_dtype, digest_every=1
        )
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        _train(wrapper, wrapper, inner, 8, random.Random(herring.rank()))
        for _ in wrapper.flush():
            inner.step()
        same_everywhere(model.parameters())
        wrapper.close()


@case
def a_round_in_16_bits_has_the_average_rounded() -> None:
    model, single = mlp(), mlp()
    spare = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("spare", spare)
    wrapper = herring.DistributedDataParallel(
        model, sync=herring.Quorum(herring.size()), wire_dtype="bfloat16"
    )
    inputs, labels = mine(0)
    F.cross_entropy(wrapper(inputs), labels).backward()
    for _ in wrapper.rounds():
        assert spare.grad is None
        everyone, theirs = everyones_batch(0)
        F.cross_entropy(single(everyone), theirs).backward()
        for ours, reference in zip(model[0].parameters(), single[0].parameters()):
            close(ours.grad, reference.grad, 5e-3)
            assert torch.equal(ours.grad, ours.grad.bfloat16().float())
    list(wrapper.flush())
    wrapper.close()


@case
def options_of_rounds_that_have_no_meaning_are_refused() -> None:
    refusals = [
        ({"sync": "solo", "results": "newest"}, "'latest'"),
        ({"results": "latest"}, "are for a partial sync"),
        ({"synchronize_every": 5}, "are for a partial sync"),
        ({"sync": "solo", "synchronize_every": 5}, "is for results='latest'"),
        ({"sync": "solo", "results": "latest", "synchronize_every": -1}, "synchronize_every is -1"),
        ({"sync": "solo", "results": "latest", "digest_every": 7}, "digest_every is 7"),
        ({"sync": herring.Replay("x"), "results": "latest"}, "a Replay takes every result"),
        ({"sync": "solo", "wire_dtype": "fp8"}, "it must be None, 'float16' or 'bfloat16'"),
        ({"sync": "solo", "wire_dtype": herring.TopK(0.01)}, "must be None, 'float16'"),
        (
            {"sync": "solo", "results": "latest", "synchronize_every": 2, "buffer_bytes": 99},
            "synchronize_every=2 needs whole updates",
        ),
        ({"sync": herring.Replay("x"), "buffer_bytes": 1 << 20}, "it must be 0"),
    ]
    for options, text in refusals:
        with raises(herring.InvalidArgumentError, text):
            herring.DistributedDataParallel(mlp(), **options)
        model = mlp()
        with raises(herring.InvalidArgumentError, text):
            herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
    with raises(herring.MismatchError, "results=every", "results=latest"):
        herring.DistributedDataParallel(
            mlp(), sync="solo", results="latest" if herring.rank() == 1 else "every"
        )
