"""Compares SyncBatchNorm with BatchNorm in one process that has all ranks' samples."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import herring.torch as herring

from .support import batch, case, close, raises, same_everywhere


def _images(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = batch(step, rank, rows=6)
    return inputs.view(6, 1, 4, 4), labels


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 5, 3),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 12, bias=False),
        nn.BatchNorm1d(12, momentum=None),
        nn.Linear(12, 4),
    )


def _stepped(run, optimizer, inputs, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(run(inputs), labels)
    loss.backward()
    optimizer.step()


def _compare(make_run, tolerance: float = 1e-5, **options) -> None:
    """Trains with `make_run(ddp)` and in one process; parameters and buffers must be equal."""
    model = herring.SyncBatchNorm.convert_sync_batchnorm(_model())
    alone = _model()
    ddp = herring.DistributedDataParallel(model, **options)
    run = make_run(ddp)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
    for step in range(3):
        _stepped(run, optimizers[0], *_images(step, herring.rank()))
        parts = [_images(step, rank) for rank in range(herring.size())]
        _stepped(alone, optimizers[1], *(torch.cat(one) for one in zip(*parts)))
    same_everywhere(model.state_dict().values())
    for name, one in model.state_dict().items():
        close(one, alone.state_dict()[name], tolerance)
    ddp.eval()
    alone.eval()
    inputs = _images(9, 0)[0]
    close(run(inputs).detach(), alone(inputs).detach(), tolerance)


@case
def sync_batch_norm():
    _compare(lambda ddp: ddp)
    _compare(lambda ddp: ddp, broadcast_buffers=False)


@case
def sync_batch_norm_checkpointed():
    """A checkpoint's second forward pass, inside backward, exchanges statistics again."""
    model = herring.SyncBatchNorm.convert_sync_batchnorm(_model())
    plain = herring.SyncBatchNorm.convert_sync_batchnorm(_model())
    first, rest = model[:3], model[3:]
    model.forward = lambda x: rest(checkpoint(first, x, use_reentrant=False))
    for owner in (model, plain):
        ddp = herring.DistributedDataParallel(owner)
        optimizer = torch.optim.SGD(owner.parameters(), lr=0.1)
        for step in range(3):
            _stepped(ddp, optimizer, *_images(step, herring.rank()))
    for one, other in zip(model.parameters(), plain.parameters()):
        assert torch.equal(one, other)


@case
def sync_batch_norm_compiled():
    torch.compiler.reset()
    _compare(lambda ddp: torch.compile(ddp, backend="aot_eager"))
    torch.compiler.reset()


@case
def sync_batch_norm_in_mixed_precision():
    """Under autocast, statistics are in float32, and outputs have the dtype of the inputs."""
    scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=1024.0)
    model = herring.SyncBatchNorm.convert_sync_batchnorm(_model())
    ddp = herring.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        inputs, labels = _images(step, herring.rank())
        optimizer.zero_grad()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
            loss = F.cross_entropy(ddp(inputs), labels)
        if step == 2 and herring.rank() == herring.size() - 1:
            loss = loss * float("inf")  # one rank overflows: all skip the step
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    same_everywhere(model.state_dict().values())
    narrow = torch.randn(4, 5, 2, 2).bfloat16()
    assert model[1](narrow).dtype == torch.bfloat16 and model[1].running_mean.dtype == torch.float32


@case
def sync_batch_norm_uneven():
    """Ranks have different numbers of samples, and one rank has none."""
    rank, size = herring.rank(), herring.size()
    counts = [0 if r == 1 else 2 + r for r in range(size)]
    everything = torch.randn(sum(counts), 3, 2, generator=torch.Generator().manual_seed(1))
    whole = everything.clone().requires_grad_()
    first = sum(counts[:rank])
    here = slice(first, first + counts[rank])
    inputs = everything[here].clone().requires_grad_()
    mine, alone = herring.SyncBatchNorm(3, affine=False), nn.BatchNorm1d(3, affine=False)
    found, wanted = mine(inputs), alone(whole)
    found.pow(3).sum().backward()
    wanted.pow(3).sum().backward()
    close(found.detach(), wanted[here].detach(), 1e-5)
    close(inputs.grad, whole.grad[here], 1e-4)
    close(mine.running_var, alone.running_var, 1e-5)
    without = herring.SyncBatchNorm(3, track_running_stats=False).eval()
    plain = nn.BatchNorm1d(3, track_running_stats=False).eval()
    close(without(inputs).detach(), plain(whole)[here].detach(), 1e-5)


@case
def sync_batch_norm_without_samples():
    """Empty batches on all ranks change the statistics as an empty batch changes BatchNorm's."""
    for shape in ((0, 3), (0, 3, 4)):
        ours, single = herring.SyncBatchNorm(3), nn.BatchNorm1d(3)
        for norm in (ours, single):
            norm.running_mean.fill_(5.0)
            norm.running_var.fill_(2.0)
            assert norm(torch.zeros(shape)).shape == shape
        for one, other in zip(ours.buffers(), single.buffers()):
            assert torch.equal(one, other), (one, other)


@case
def sync_batch_norm_of_a_group():
    """In a group of one rank, SyncBatchNorm equals BatchNorm."""
    alone = herring.new_group([herring.rank()])
    norm = herring.SyncBatchNorm(16, group=alone)
    plain = nn.BatchNorm1d(16)
    inputs = batch(0, herring.rank())[0]
    assert torch.equal(copy.deepcopy(norm)(inputs), plain(inputs))
    everyone = herring.new_group(list(range(herring.size())))
    norm = herring.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(16), everyone)
    close(norm(inputs).detach(), herring.SyncBatchNorm(16)(inputs).detach(), 1e-6)
    with raises(herring.InvalidArgumentError, "1 dimensions", "2 or more"):
        norm(torch.zeros(3))
    with raises(herring.InvalidArgumentError, "LazyBatchNorm1d", "pass a batch"):
        herring.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.LazyBatchNorm1d()))
    kept = nn.Sequential(nn.BatchNorm1d(16), nn.InstanceNorm1d(16))
    weight = kept[0].weight
    kept[0].register_forward_hook(lambda *_: seen.append(1))
    seen: list[int] = []
    assert herring.SyncBatchNorm.convert_sync_batchnorm(kept) is kept
    assert kept[0].weight is weight and type(kept[1]) is nn.InstanceNorm1d
    kept[0](inputs)
    assert seen == [1]
