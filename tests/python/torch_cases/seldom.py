"""Cases for training in which ranks meet seldom: DiLoCo, streaming DiLoCo and local SGD."""

from __future__ import annotations

import copy
import gc

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import herring.torch as herring
from herring.torch.fragments import split

from .support import batch, case, close, group_case, mine, mlp, raises, same_everywhere, train


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **({"lr": 0.7, "momentum": 0.9, "nesterov": True} | options))


def average(tensors):
    """Returns the average in the order in which Herring adds on equal nodes."""
    tensors = list(tensors)
    count = len(tensors)
    while len(tensors) > 1:
        pairs = [tensors[i : i + 2] for i in range(0, len(tensors), 2)]
        tensors = [pair[0] + pair[1] if len(pair) > 1 else pair[0] for pair in pairs]
    return tensors[0] / count


def reference(steps, *, every, fragments=1, delay=0, alpha=0.0, outer=sgd, weights=None):
    """Trains the models of all ranks here, as algorithm 2 of arXiv 2501.18512 does."""
    size = herring.size()
    models = [mlp() for _ in range(size)]
    inner = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    agreed = {name: p.detach().clone() for name, p in models[0].named_parameters()}
    parts = [list(part) for part in split(dict(models[0].named_parameters()), fragments)]
    optimizers = [outer([agreed[name] for name in part]) for part in parts]
    moved = {}
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, inner)):
            train(model, optimizer, lambda _, s=step, r=rank: batch(s, r), 1)
        for part, (names, optimizer) in enumerate(zip(parts, optimizers)):
            since = step - (part + 1) * every // fragments
            if since >= 0 and since % every == 0:
                for name in names:
                    own = [agreed[name] - m.get_parameter(name).detach() for m in models]
                    if weights:
                        own = [w * one for w, one in zip(weights, own)]
                    moved[name] = average(own) * (size / sum(weights) if weights else 1)
            if since >= delay and (since - delay) % every == 0:
                for name in names:
                    agreed[name].grad = moved[name]
                optimizer.step()
                for name in names:
                    for model in models:
                        own = model.get_parameter(name).detach()
                        own.copy_(torch.lerp(agreed[name], own, alpha) if alpha else agreed[name])
    return models[herring.rank()], agreed


def trained(steps, *, model=None, seed_step=0, **options):
    """Trains a model with DiLoCo; returns it and the DiLoCo object, whose block has not ended."""
    model = mlp() if model is None else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    diloco = herring.DiLoCo(model, optimizer, **options)
    diloco.open()
    train(model, optimizer, lambda step: mine(step + 1), steps)
    return model, diloco


def equal(one, other):
    """Asserts equal bits where the order of additions is known, else closeness."""
    if herring.size() == 4:
        assert torch.equal(one, other), (one - other).abs().max()
    else:
        close(one, other, 1e-5)


@case
def diloco_is_its_algorithm():
    for options in (
        {"every": 5},
        {"every": 6, "fragments": 3},
        {"every": 8, "fragments": 2, "delay": 3},
        {"every": 7, "fragments": 2, "delay": 2, "alpha": 0.5},
        {"every": 1, "outer": lambda parameters: torch.optim.AdamW(parameters, lr=0.02)},
    ):
        wanted, agreed = reference(20, **options)
        outer = options.pop("outer", None)
        model, diloco = trained(20, outer_optimizer=outer, digest_every=1, **options)
        for name, parameter in model.named_parameters():
            equal(parameter.detach(), wanted.get_parameter(name).detach())
        state = diloco.state_dict()
        found = {}
        for part in state["fragments"]:
            found |= part["parameters"]
        same_everywhere(found.values())
        for name, outer in found.items():
            equal(outer, agreed[name])
        diloco.close()


@case
def diloco_makes_ranks_equal():
    for wire in (None, "bfloat16", "fp8", torch.float8_e5m2, "int8"):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with herring.DiLoCo(model, optimizer, every=4, wire_dtype=wire, digest_every=1) as diloco:
            for step in range(1, 13):
                train(model, optimizer, lambda _, step=step: mine(step), 1)
                if step % 4 == 0:
                    same_everywhere(model.parameters())
            assert diloco.steps == 12 and diloco.meetings == 3
        assert diloco.meetings == 3  # nothing was left to do at the end
        wanted, _ = reference(12, every=4)
        for one, other in zip(model.parameters(), wanted.parameters()):
            close(one.detach(), other.detach(), 1e-5 if wire is None else 0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with herring.DiLoCo(model, optimizer, every=4, fragments=2, delay=1, alpha=0.75):
        train(model, optimizer, mine, 7)
    same_everywhere(model.parameters())


@case
def diloco_sends_fewer_bytes():
    sent = {}
    for wire in (None, "fp8"):
        model, diloco = trained(2, model=mlp(width=256), every=2, wire_dtype=wire)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diloco.close()
        with herring.DiLoCo(model, optimizer, every=4, wire_dtype=wire, digest_every=0):
            herring.barrier()
            before = herring.stats()["bytes_sent"]
            train(model, optimizer, mine, 3)
            assert herring.stats()["bytes_sent"] == before
            train(model, optimizer, mine, 1)
            herring.barrier()
            sent[wire] = herring.stats()["bytes_sent"] - before
    if herring.num_nodes() > 1:
        assert sent["fp8"] < 0.35 * sent[None], sent


@case
def local_sgd_averages_parameters():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with herring.LocalSGD(model, optimizer, every=3):
        train(model, optimizer, mine, 3)
        same_everywhere(model.parameters())
        train(model, optimizer, lambda step: mine(step + 3), 3)
    models = [mlp() for _ in range(herring.size())]
    inner = [torch.optim.Adam(one.parameters(), lr=0.01) for one in models]
    for start in (0, 3):
        for rank, (one, its) in enumerate(zip(models, inner)):
            train(one, its, lambda step, rank=rank, start=start: batch(step + start, rank), 3)
        for parameters in zip(*(one.parameters() for one in models)):
            mean = average([p.detach() for p in parameters])
            for parameter in parameters:
                parameter.detach().copy_(mean)
    for one, other in zip(model.parameters(), models[0].parameters()):
        close(one.detach(), other.detach(), 1e-5)


class Still(nn.Module):
    """A model with buffers, whose parameters the cases move by hand."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weights = nn.ParameterList([torch.full((5, 3), 1.0, dtype=dtype) for _ in range(3)])
        self.norm = nn.BatchNorm1d(4)

    def move(self, *by):
        for weight, amount in zip(self.weights, by):
            weight.detach().add_(amount)


def everyones(value):
    return [value(rank) for rank in range(herring.size())]


@case
def diloco_averages_buffers():
    model = Still()
    rank = herring.rank()
    with herring.LocalSGD(model, None, every=2) as diloco:
        for _ in range(2):
            model.norm(torch.full((3, 4), float(rank)))
            diloco.step()
        mean = sum(everyones(lambda rank: 0.19 * rank)) / herring.size()
        close(model.norm.running_mean, torch.full((4,), mean), 1e-5)
        same_everywhere([model.norm.running_mean, model.norm.running_var])
        if rank == 0:
            model.norm(torch.zeros(3, 4))
    same_everywhere(model.buffers())
    assert model.norm.num_batches_tracked == 3


@case
def diloco_of_16_bit_models():
    for dtype in (torch.bfloat16, torch.float16):
        model = Still(dtype)
        with herring.LocalSGD(model, None, every=1) as diloco:
            for _ in range(8):
                model.move(0.0, 2.0**-7 * (herring.rank() == 0))
                diloco.step()
        # The outer copy keeps what a 16-bit parameter cannot hold, and rests where ranks rest.
        outer = diloco.state_dict()["fragments"][0]["parameters"]["weights.1"]
        assert outer.dtype == torch.float32
        close(outer, torch.full((5, 3), 1 + 2.0**-4 / herring.size()), 1e-5)
        assert torch.equal(model.weights[0], torch.ones(5, 3, dtype=dtype))
        assert torch.equal(model.weights[1], outer.to(dtype))
    model = Still(torch.float64)
    with herring.LocalSGD(model, None, every=1) as diloco:
        model.move(1e-12 * (herring.rank() + 1))
        diloco.step()
    mean = sum(everyones(lambda rank: rank + 1)) / herring.size()
    close(model.weights[0].detach() - 1, torch.full((5, 3), 1e-12 * mean), 1e-3)


@case
def diloco_weighs_by_tokens():
    rank, size = herring.rank(), herring.size()
    weights = everyones(lambda rank: 1000 * (rank + 1))
    wanted, _ = reference(6, every=3, weights=[one / 1024 for one in weights])
    for wire in (None, "float16"):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        with herring.DiLoCo(model, optimizer, every=3, wire_dtype=wire) as diloco:
            for step in range(1, 7):
                if step % 3 == 1:
                    diloco.tokens += weights[rank]
                train(model, optimizer, lambda _, step=step: mine(step), 1)
        for one, other in zip(model.parameters(), wanted.parameters()):
            close(one.detach(), other.detach(), 1e-5 if wire is None else 1e-2)
    with raises(herring.InvalidArgumentError, "tokens"):
        diloco.tokens = 3
    if size > 1:
        model = Still()
        diloco = herring.DiLoCo(model, None, every=1)
        diloco.open()
        diloco.tokens += rank == 0
        ranks = "rank 1" if size == 2 else "ranks 1"
        with raises(herring.InvalidArgumentError, "gave no tokens", ranks):
            diloco.step()
        diloco.close()


@case
def diloco_state_goes_on_bit_for_bit():
    options = {"every": 6, "fragments": 2, "delay": 2, "alpha": 0.25}
    wanted, diloco = trained(20, **options)
    diloco.close()
    for stop in (7, 10, 14):  # a meeting is under way after 10 steps
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        diloco = herring.DiLoCo(model, optimizer, **options)
        diloco.open()
        train(model, optimizer, lambda step: mine(step + 1), stop)
        saved = copy.deepcopy([one.state_dict() for one in (model, optimizer, diloco)])
        diloco.close()
        model = mlp(seed=9)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
        diloco = herring.DiLoCo(model, optimizer, **options)
        for one, state in zip((model, optimizer, diloco), saved):
            one.load_state_dict(state)
        diloco.open()
        train(model, optimizer, lambda step, stop=stop: mine(step + stop + 1), 20 - stop)
        for one, other in zip(model.parameters(), wanted.parameters()):
            assert torch.equal(one, other)
        with raises(herring.InvalidArgumentError, "fragments=2"):
            herring.DiLoCo(model, optimizer, every=6).load_state_dict(saved[2])
        with raises(herring.InvalidArgumentError, "0.weight"):
            herring.DiLoCo(mlp(width=8), None, **options).load_state_dict(saved[2])
        if stop % options["every"]:
            with raises(herring.InvalidArgumentError, "inside an interval", "flush()"):
                other = {**options, "every": 2 * options["every"]}
                herring.DiLoCo(model, optimizer, **other).load_state_dict(saved[2])
        diloco.close()


@case
def diloco_residuals_are_kept():
    model = Still()
    with herring.DiLoCo(model, None, every=1, wire_dtype="int8") as diloco:
        model.norm(torch.randn(3, 4))
        model.move(*(torch.randn(5, 3) * (herring.rank() + 1) for _ in range(3)))
        diloco.step()
        found = diloco.residuals()
        same_everywhere(found.values())
        assert set(found) == {
            *(f"weights.{i}" for i in range(3)),
            *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"),
        }
        assert any(one.any() for one in found.values()) == (herring.num_nodes() > 1)
        diloco.load_residuals({})
        assert not any(one.any() for one in diloco.residuals().values())
        diloco.load_residuals(found)
        for name, one in diloco.residuals().items():
            close(one, found[name], 1e-6)
        with raises(herring.InvalidArgumentError, "nobody", "load_residuals"):
            diloco.load_residuals({"nobody": torch.zeros(1)})
    with herring.DiLoCo(model, None, every=1) as diloco:
        assert diloco.residuals() == {}


@case
def diloco_of_uneven_data():
    rank, size = herring.rank(), herring.size()
    for options in ({"every": 2}, {"every": 4, "fragments": 2, "delay": 1}):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with herring.DiLoCo(model, optimizer, digest_every=1, **options) as diloco:
            with diloco.join():
                train(model, optimizer, mine, 5 + 4 * rank)
            same_everywhere(model.parameters())
            assert diloco.steps == 5 + 4 * (size - 1)
            train(model, optimizer, mine, 2)
            train(model, optimizer, mine, rank % 2)
        same_everywhere(model.parameters())
    # Who has left contributes what it did, once.
    model = Still()
    with herring.LocalSGD(model, None, every=2) as diloco, diloco.join():
        for _ in range(1 if rank == 0 else 4):
            model.move(1.0)
            diloco.step()
    if size > 1:
        first = 1 + (1 + 2 * (size - 1)) / size  # rank 0 has moved by 1
        close(model.weights[0].detach(), torch.full((5, 3), first + 2), 1e-6)


@case
def diloco_counts_skipped_steps():
    """A step that GradScaler skips on one rank counts, because the program counts itself."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with herring.DiLoCo(model, None, every=2) as diloco:
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().mean()
            if step == herring.rank():
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            diloco.step()
        assert diloco.meetings == 3
        same_everywhere(model.parameters())
    assert all(p.isfinite().all() for p in model.parameters())


@case
def diloco_accumulates_and_wraps_optimizers():
    """Only steps count, and a wrapped optimizer's are those of what it wraps."""
    model = mlp()
    optimizer = herring.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with herring.DiLoCo(model, optimizer, every=2) as diloco:
        for step in range(4):
            optimizer.zero_grad()
            for part in range(2):
                inputs, labels = mine(2 * step + part)
                F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        assert diloco.steps == 4 and diloco.meetings == 2
    same_everywhere(model.parameters())
    optimizer.close()


@case
def diloco_leaves_no_hook_behind():
    """A notebook makes the object again and again, and never ends the block."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        diloco = herring.DiLoCo(model, optimizer)
        diloco.open()
        with raises(herring.InvalidArgumentError, "state_dict()"):
            copy.deepcopy(diloco)
        del diloco
        gc.collect()
        assert not optimizer._optimizer_step_post_hooks


@case
def diloco_of_two_models():
    models = [mlp(seed=1), mlp(seed=2)]
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in models]
    with (
        herring.DiLoCo(models[0], optimizers[0], every=4, delay=1) as first,
        herring.LocalSGD(models[1], optimizers[1], every=3, wire_dtype="fp8") as second,
    ):
        for step in range(9):
            order = [0, 1] if herring.rank() % 2 or step % 4 == 3 else [1, 0]
            for index in order:
                train(models[index], optimizers[index], lambda _, step=step: mine(step), 1)
        assert first.name != second.name and (first.meetings, second.meetings) == (2, 3)
    for model in models:
        same_everywhere(model.parameters())


@case
def diloco_leaves_frozen_parameters():
    model = Still()
    rank, size = herring.rank(), herring.size()
    model.weights[0].requires_grad_(False)
    with herring.DiLoCo(model, None, every=1, wire_dtype="fp8") as diloco:
        model.move(float(rank), 1.0, 1.0)
        diloco.step()
        assert model.weights[0][0, 0] == 1 + rank  # left alone
        moved = model.weights[1].detach().clone()
        # Momentum does not move what is frozen now.
        model.weights[1].requires_grad_(False)
        diloco.step()
        assert torch.equal(model.weights[1], moved)
        # Ranks refuse what nobody averages, and all of them.
        if rank == size - 1:
            model.weights[0].requires_grad_(True)
        with raises(herring.InvalidArgumentError, "weights.0", "flush()"):
            diloco.step()
        model.weights[0].requires_grad_(True)
        diloco.flush()
        mean = 1 + sum(range(size)) / size
        close(model.weights[0].detach(), torch.full((5, 3), mean), 1e-6)
        assert set(diloco.state_dict()["fragments"][0]["parameters"]) == {
            *("weights.0", "weights.2", "norm.weight", "norm.bias")
        }
        before = diloco.meetings
        model.move(1.0)
        diloco.step()
        assert diloco.meetings == before + 1
        same_everywhere([model.weights[0], model.weights[2]])
        if size > 1:
            if rank == 0:
                model.weights[1].requires_grad_(True)
            with raises(herring.MismatchError, "weights.1"):
                diloco.flush()
            diloco.close()


@case
def diloco_refuses():
    model, rank, size = mlp(), herring.rank(), herring.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = herring.DiLoCo
    for words, options in (
        (["every is 0"], {"every": 0}),
        (["fragments is 0"], {"fragments": 0}),
        (["fragments is 9", "every is 8"], {"every": 8, "fragments": 9}),
        (["delay is 4", "8 / 2"], {"every": 8, "fragments": 2, "delay": 4}),
        (["delay is -1"], {"delay": -1}),
        (["alpha is 1.5", "0 to 1"], {"alpha": 1.5}),
        (["alpha is nan"], {"alpha": float("nan")}),
        (["alpha is 'a'"], {"alpha": "a"}),
        (["wire_dtype", "int4"], {"wire_dtype": "int4"}),
        (["digest_every is -1"], {"digest_every": -1}),
        (["outer_optimizer", "function"], {"outer_optimizer": optimizer}),
        (["outer_optimizer is 3"], {"outer_optimizer": 3}),
        (["error_feedback"], {"error_feedback": 2}),
    ):
        with raises(herring.InvalidArgumentError, *words):
            make(model, optimizer, **options)
    with raises(herring.InvalidArgumentError, "inner_optimizer"):
        make(model, 0.1)
    with raises(herring.InvalidArgumentError, "model is"):
        make(model.parameters(), optimizer)
    diloco = make(model, optimizer)
    for call in (diloco.step, diloco.flush, diloco.residuals):
        with raises(herring.InvalidArgumentError, "block"):
            call()
    with make(model, optimizer) as diloco:
        with raises(herring.InvalidArgumentError, "has begun already"):
            with diloco:
                pass
        optimizer.step()
        assert diloco.steps == 1  # the block goes on
    with raises(herring.InvalidArgumentError, "7", "6 parameters"):
        make(model, optimizer, fragments=7).open()
    with raises(herring.InvalidArgumentError, "outer_optimizer returned 4"):
        make(model, optimizer, lambda _: 4).open()
    with raises(herring.InvalidArgumentError, "float64", "fp8"):
        make(nn.Linear(2, 2).double(), None, wire_dtype="fp8").open()
    before = [p.detach().clone() for p in model.parameters()]
    if size > 1:
        for word, first, others in (
            ("every", {"every": 8}, {"every": 9}),
            ("alpha", {"alpha": 0.5}, {}),
            ("fp8", {"wire_dtype": "fp8"}, {"wire_dtype": "int8"}),
            ("lr", {"outer_optimizer": lambda p: sgd(p, lr=0.5)}, {"outer_optimizer": sgd}),
        ):
            with raises(herring.MismatchError, word, "rank 0"):
                make(model, optimizer, **(others if rank else first)).open()
        with raises(herring.MismatchError, "weight"):
            make(nn.Linear(3 + (rank == 0), 2), None).open()
        # One that only this rank refuses fails on all.
        with raises(herring.InvalidArgumentError if rank else herring.HerringError, "fragments"):
            make(model, optimizer, fragments=7 if rank else 6).open()
    assert all(map(torch.equal, before, model.parameters()))

    # A model that changes between meetings makes the meeting fail on all ranks.
    model = Still()
    with make(model, None, every=1) as diloco:
        diloco.step()
        if rank == size - 1:
            model.weights[1] = nn.Parameter(torch.zeros(2))
        with raises(herring.InvalidArgumentError, "weights.1"):
            diloco.step()
        model.weights[1] = nn.Parameter(torch.ones(5, 3))
        diloco.step()


@case
def diloco_finds_ranks_that_differ():
    if herring.size() == 1:
        return
    model = Still()
    diloco = herring.DiLoCo(model, None, every=1, digest_every=3)
    diloco.open()
    diloco.step()
    if herring.rank() == 1:
        diloco.outer_optimizers[0].param_groups[0]["lr"] = 0.1
    model.move(1.0)
    diloco.step()
    with raises(herring.MismatchError, "outer parameters differ", "2 meetings"):
        diloco.step()
    diloco.close()


@group_case
def diloco_between_sites():
    """Ranks of a site average gradients, and sites meet: each rank with those of its place."""
    rank = herring.rank()
    sites = [herring.new_group([0, 1], name="a"), herring.new_group([2, 3], name="b")]
    across = [herring.new_group([0, 2], name="even"), herring.new_group([1, 3], name="odd")]
    for wire in (None, "fp8"):
        model = mlp()
        ddp = herring.DistributedDataParallel(model, group=sites[rank // 2])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with herring.DiLoCo(
            ddp, optimizer, every=4, wire_dtype=wire, digest_every=1, group=across[rank % 2]
        ) as diloco:
            for step in range(8):
                train(ddp, optimizer, lambda _, step=step: mine(step), 1)
                same_everywhere(model.parameters(), sites[rank // 2])
                if step % 4 == 3:
                    same_everywhere(model.parameters())
            assert diloco.meetings == 2
        ddp.close()
