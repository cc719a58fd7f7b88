"""DistributedOptimizer with a partial `sync`: replicas stay equal, and nothing is lost."""

from __future__ import annotations

import pathlib
import random
import tempfile
import time
import warnings

import torch
from torch import nn

import herring
import herring.horovod.torch as hvd

from .optimizers import Own, reference
from .support import case, close, loss_of, mlp, raises, same

MODES = [
    {"sync": "solo"},
    {"sync": "majority"},
    {"sync": herring.Quorum(2, staleness=1)},
    {"sync": "majority", "algorithm": "doubling"},
    {"sync": "solo", "algorithm": "ring"},
]


def wrapped(model: nn.Module, inner: torch.optim.Optimizer | None = None, **options):
    inner = inner or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(inner, model.named_parameters(), **options)


@case
def rounds_train_equal_replicas():
    rank = hvd.rank()
    for number, mode in enumerate(MODES):
        model = mlp(rank + 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        inner = torch.optim.Adam(model.parameters(), lr=0.01) if number % 2 else None
        seen = []

        schedules = []

        def each_round(info, model=model, seen=seen, schedules=schedules):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            seen.append(info.round)
            schedules[0].step()

        optimizer = wrapped(model, inner, each_round=each_round, digest_every=3, **mode)
        kind = torch.optim.Adam if number % 2 else torch.optim.SGD
        assert isinstance(optimizer, kind)
        schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5))
        step = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            while optimizer.round < 9:
                if step % hvd.size() == rank:
                    time.sleep(0.01)
                optimizer.zero_grad()
                loss_of(model, step, rank).backward()
                optimizer.step()
                step += 1
            optimizer.flush()
        assert seen == list(range(optimizer.round)), seen
        rate = optimizer.param_groups[0]["lr"]
        assert abs(rate - (0.01 if number % 2 else 0.1) * 0.5 ** (len(seen) // 4)) < 1e-9, rate
        assert optimizer.statistics.summary().startswith(f"{len(seen)} rounds")
        same(model)


@case
def rounds_lose_nothing_if_ranks_make_different_numbers_of_steps():
    rank, size = hvd.rank(), hvd.size()
    delays = random.Random(rank)
    for number, mode in enumerate(MODES):
        op = hvd.Sum if number % 2 else hvd.Average
        model = nn.Linear(40, 3, bias=False)
        nn.init.zeros_(model.weight)
        optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=1.0), op=op, **mode)
        steps = 3 + 4 * ((rank + number) % size)
        for step in range(steps):
            if delays.random() < 0.5:
                time.sleep(delays.random() * 0.01)
            optimizer.zero_grad()
            # Gradients are whole numbers that do not depend on the weights.
            (model(torch.full((1, 40), 1.0 + rank)) * (1 + step)).sum().backward()
            optimizer.step()
        optimizer.flush()
        same(model)
        total = sum(hvd.allgather_object((1 + rank) * steps * (steps + 1) / 2))
        moved = total if op == hvd.Sum else total / size
        assert torch.allclose(model.weight.detach(), torch.full((3, 40), -moved)), mode
        assert set(hvd.allgather_object(optimizer.round)) == {optimizer.round}


@case
def rounds_of_all_are_full_steps():
    """Also with several passes per step; another series begins after a flush."""
    rank = hvd.rank()
    for passes in (1, 2):
        model = mlp()
        everybody = herring.Quorum(hvd.size(), staleness=0)
        optimizer = wrapped(model, backward_passes_per_step=passes, sync=everybody)
        for step in range(3):
            optimizer.zero_grad()
            for number in range(passes):
                loss_of(model, step * passes + number, rank).backward()
            assert optimizer.step() is None
            if step == 1:
                optimizer.flush()  # Nothing is pending, so that no step is made.
        close(model, reference(3, passes, 1 / hvd.size()), 1e-4)
        same(model)
        for _ in range(passes):
            loss_of(model, 0, rank).backward()
        late = loss_of(model, 0, rank)
        raises(AssertionError, f"backward_passes_per_step is {passes}", late.backward)
        optimizer.flush()
        same(model)


@case
def rounds_take_closures_and_give_up_what_raised():
    model = mlp()
    optimizer = wrapped(model, sync="majority", digest_every=1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, hvd.rank())
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    loss_of(model, 0, hvd.rank()).backward()
    raises(AssertionError, "before optimizer.step()", optimizer.zero_grad)
    optimizer.step()
    hook = model[0].weight.register_hook(lambda _: 1 / 0)
    raises(ZeroDivisionError, "", loss_of(model, 1, hvd.rank()).backward)
    hook.remove()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.zero_grad()
    assert "gave its step up" in str(caught[0].message), caught
    assert caught[0].filename == __file__, caught[0]
    optimizer.step(closure)
    optimizer.flush()
    same(model)


@case
def rounds_refuse_what_has_no_meaning():
    model = mlp()
    named = list(model.named_parameters())
    adam, table = torch.optim.Adam(model.parameters()), nn.Embedding(3, 2, sparse=True)

    def make(inner=adam, **options):
        return hvd.DistributedOptimizer(inner, **{"sync": "solo", **options})

    refused = herring.InvalidArgumentError
    raises(refused, "sync is 'some'; it must be 'full', 'solo'", make, sync="some")
    raises(refused, "quorum is 9", make, sync=herring.Quorum(9))
    raises(refused, "'solo' does not take op=hvd.Adasum", make, op=hvd.Adasum)
    for compression in (hvd.Compression.fp16, hvd.Compression.int8, Own):
        raises(refused, "does not take a compression", make, compression=compression)
    raises(refused, "SparseAdam", make, torch.optim.SparseAdam(table.parameters()))
    raises(refused, "the algorithm", make, algorithm="snail")
    raises(refused, "'doubling' is for", make, sync="full", algorithm="doubling")
    raises(refused, "each_round is for", make, sync="full", each_round=print)
    raises(refused, "digest_every is -1", make, digest_every=-1)
    raises(herring.MismatchError, "sync='solo'", make, sync="solo" if hvd.rank() else "majority")
    full = make(sync="full")
    full.flush()
    raises(refused, "made with sync='full'", getattr, full, "round")
    del full
    optimizer = make(named_parameters=named)
    raises(refused, "is for sync='full'; with sync='solo'", optimizer.synchronize)
    raises(refused, "is for sync='full'", optimizer.skip_synchronize().__enter__)
    raises(refused, "add_param_group is for sync='full'", optimizer.add_param_group, {"params": []})
    loss_of(model, 0, hvd.rank()).backward()
    optimizer.step()
    raises(refused, "call optimizer.flush()", hvd.join)
    optimizer.flush()
    hvd.join()
    same(model)


@case
def rounds_of_a_process_set():
    members = hvd.add_process_set([0, hvd.size() - 1])
    model = mlp()
    optimizer = wrapped(model, process_set=members, sync="majority")
    for step in range(2 + hvd.rank()):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
    optimizer.flush()
    every = hvd.allgather_object(model[0].weight.tolist())
    assert every[0] == every[-1] != every[1]
    if members.included():
        assert optimizer.round > 2
    else:
        raises(herring.InvalidArgumentError, "has no round", getattr, optimizer, "round")
    hvd.remove_process_set(members)


@case
def rounds_are_replayed_with_the_same_bits():
    folder = tempfile.mkdtemp() if hvd.rank() == 0 else None
    path = pathlib.Path(hvd.broadcast_object(folder), "rounds.json")

    def train(sync, seed):
        delays = random.Random(100 * seed + hvd.rank())
        model = mlp()
        optimizer = wrapped(model, sync=sync)
        for step in range(12):
            if delays.random() < 0.4:
                time.sleep(delays.random() * 0.02)
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
        optimizer.flush()
        return [p.detach().view(torch.int32).tolist() for p in model.parameters()], optimizer

    recorded, optimizer = train("solo", 1)
    optimizer.statistics.save(path)
    replayed, again = train(herring.Replay(path), 2)
    assert replayed == recorded
    assert again.statistics.rounds == optimizer.statistics.rounds


@case
def rounds_leave_out_what_a_scaler_skips():
    """Also of fused optimizers, which otherwise unscale gradients themselves, after their sum."""
    size = hvd.size()
    for fused in (False, True):
        for overflows in (1, 2):
            parameter = torch.nn.Parameter(torch.ones(4))
            inner = torch.optim.SGD([parameter], lr=0.1, fused=fused)
            optimizer = hvd.DistributedOptimizer(inner, sync=herring.Quorum(size))
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            for step in range(3):
                optimizer.zero_grad()
                fails = step == overflows and hvd.rank() == 1
                scaler.scale((parameter * (float("inf") if fails else 1.0)).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            optimizer.flush()
            assert torch.allclose(parameter, torch.tensor(1 - 0.1 * (3 - 1 / size))), parameter
    kind = torch.optim.LBFGS
    optimizer = kind([torch.nn.Parameter(torch.ones(4))])
    make = hvd.DistributedOptimizer
    raises(herring.InvalidArgumentError, "closure", make, optimizer, sync="solo")
