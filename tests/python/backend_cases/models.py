"""Cases for torch's own DistributedDataParallel, compared with gloo."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import herring.torch

from .support import case, gloo, raises


class _Net(torch.nn.Module):
    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 6, sparse=sparse)
        self.inner = torch.nn.Linear(6, 40)
        self.norm = torch.nn.BatchNorm1d(40)
        self.outer = torch.nn.Linear(40, 3)
        self.spare = torch.nn.Linear(40, 3)

    def forward(self, rows: torch.Tensor, spare: bool = False) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.inner(self.embedding(rows))))
        return self.spare(hidden) if spare else self.outer(hidden)


def _batches(step: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(100 * dist.get_rank() + step)
    return torch.randint(0, 11, (8,), generator=make)


def _trained(group: Any, options: dict[str, Any], **ways: Any) -> list[torch.Tensor]:
    torch.manual_seed(dist.get_rank())  # DDP makes the models equal
    net = _Net(ways.get("sparse", False)).to(ways.get("dtype", torch.float64))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.001, **options)
    if "hook" in ways:
        hook = ways["hook"]
        hook(model) if ways.get("registers") else model.register_comm_hook(group, hook)
    if ways.get("zero"):
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, process_group=group, lr=0.05
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(4):
        spare = ways.get("spare", False) and step % 2 == 1 and dist.get_rank() == 0
        use_spare = spare or ways.get("always_spare", False)
        if ways.get("accumulates"):
            with model.no_sync():
                model(_batches(step + 50)).square().mean().backward()
        loss = model(_batches(step), spare=use_spare).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()] + [b.clone() for b in net.buffers()]


def _by_builtin(model: Any) -> None:
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({"find_unused_parameters": True}, {}),
    "views": ({"gradient_as_bucket_view": True, "find_unused_parameters": True}, {}),
    "unused": ({"find_unused_parameters": True}, {"spare": True}),
    "static": ({"static_graph": True}, {}),
    "accumulates": ({"find_unused_parameters": True}, {"accumulates": True}),
    "sparse": ({"find_unused_parameters": True}, {"sparse": True}),
    "hook": ({"find_unused_parameters": True}, {"hook": default_hooks.allreduce_hook}),
    "half hook": (
        {"find_unused_parameters": True},
        {"hook": default_hooks.fp16_compress_hook, "dtype": torch.float32},
    ),
    "builtin": ({"find_unused_parameters": True}, {"hook": _by_builtin, "registers": True}),
    "zero": ({"find_unused_parameters": True}, {"zero": True}),
}


@case
def stock_ddp() -> None:
    for name, (options, ways) in VARIANTS.items():
        if name == "half hook":
            tolerance = {"rtol": 2e-2, "atol": 2e-2}
        else:
            tolerance = {"rtol": 1e-10, "atol": 1e-12}
        found, wanted = (_trained(group, options, **ways) for group in (None, gloo()))
        for one, other in zip(found, wanted):
            torch.testing.assert_close(
                one, other, msg=lambda text, n=name: f"{n}: {text}", **tolerance
            )
        parameters = found[: len(list(_Net().parameters()))]  # forward makes buffers equal
        flat = torch.cat([one.double().reshape(-1) for one in parameters])
        first = flat.clone()
        dist.broadcast(first, 0)
        assert torch.equal(flat, first), name  # bit-identical on all ranks


@case
def hook_over_herring() -> None:
    options = {"find_unused_parameters": True}
    wanted = _trained(gloo(), options)

    def register(model: Any) -> None:
        model.register_comm_hook(None, herring.torch.ddp_comm_hook)

    for found in (
        _trained(gloo(), options, hook=register, registers=True),
        _trained(None, options, hook=herring.torch.ddp_comm_hook),
    ):
        for one, other in zip(found, wanted):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def _buckets_of(group: Any) -> None:
    herring.torch.PlannedBuckets(group=group)


@case
def planned_buckets() -> None:
    """Buckets agree once, then nothing is announced; they may travel in 8 bits."""
    options = {"find_unused_parameters": True}
    wanted = _trained(gloo(), options)
    for wire in (None, "fp8", "int8"):
        state = herring.torch.PlannedBuckets(wire)

        def register(model: Any, state: Any = state) -> None:
            model.register_comm_hook(state, herring.torch.ddp_comm_hook)

        ways = {"hook": register, "registers": True, "dtype": torch.float32 if wire else None}
        ways = {key: value for key, value in ways.items() if value is not None}
        close = {"rtol": 0.05, "atol": 0.05} if wire else {"rtol": 1e-10, "atol": 1e-12}
        for group in (gloo(), None):
            found = _trained(group, options, **ways)
            for one, other in zip(found, wanted):
                torch.testing.assert_close(one.double(), other.double(), **close)
            mine = torch.cat([one.double().reshape(-1) for one in found[:9]])
            first = mine.clone()
            dist.broadcast(first, 0)
            assert torch.equal(mine, first), wire
    raises(herring.InvalidArgumentError, "int16", herring.torch.PlannedBuckets, "int16")
    raises(herring.InvalidArgumentError, "3", _buckets_of, 3)


@case
def planned_buckets_announce_nothing() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(6)])
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)
    model.register_comm_hook(herring.torch.PlannedBuckets(), herring.torch.ddp_comm_hook)

    def step() -> None:
        net.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()

    for _ in range(3):
        step()
    before = herring.stats()["seconds"]["total"]
    for _ in range(5):
        step()
    after = herring.stats()["seconds"]["total"]
    assert after["calls"] == before["calls"], (before, after)
    assert after["rounds"] >= before["rounds"] + 10, (before, after)


@case
def hooks_that_start_collectives_late() -> None:
    """PowerSGD starts collectives when others complete, in the middle of the backward pass."""

    def trained(group: Any, hook: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(40, 40) for _ in range(6)])
        model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.01)
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, random_seed=1)
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(8):
            torch.manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            model(torch.randn(8, 40)).square().mean().backward()
            optimizer.step()
        return list(net.parameters())

    def one_by_one(state, bucket):  # torch rejects annotations that are strings
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait())
        return done

    wanted = trained(gloo(), one_by_one)
    found = trained(None, herring.torch.ordered_comm_hook(powerSGD_hook.powerSGD_hook))
    for one, other in zip(found, wanted):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
        first = one.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(one, first)


@case
def uneven_inputs() -> None:
    results = []
    for group in (None, gloo()):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Join([model]):
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                model(torch.full((4, 3), step + 1.0 + dist.get_rank())).sum().backward()
                optimizer.step()
        results.append(copy.deepcopy(list(model.module.parameters())))
    for one, other in zip(*results):
        torch.testing.assert_close(one, other)


@case
def mixed_precision() -> None:
    """Autocast, scaler and SyncBatchNorm in torch's DDP; one rank overflows, and all skip."""
    results = []
    for group in (None, gloo()):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        )
        model = DistributedDataParallel(
            herring.torch.SyncBatchNorm.convert_sync_batchnorm(net), process_group=group
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler(torch.get_default_device().type, init_scale=256.0)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
                output = model(_embedded(step)).float().square().mean()
            factor = float("inf") if step == 1 and dist.get_rank() == 3 else 1.0
            scaler.scale(output * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 128.0
        results.append([one.detach().clone() for one in net.state_dict().values()])
    for one, other in zip(*results):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@case
def sharded_scaler() -> None:
    """FSDP's scaler: an infinite value in one rank's shard makes all ranks skip the step."""
    torch.manual_seed(0)
    model = FullyShardedDataParallel(torch.nn.Linear(6, 4), device_id=torch.get_default_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = ShardedGradScaler(device=torch.get_default_device().type, init_scale=256.0)
    for step in range(2):
        optimizer.zero_grad()
        factor = float("inf") if step == 1 and dist.get_rank() == 1 else 1.0
        scaler.scale(model(_embedded(step)).sum() * factor).backward()
        if step == 1 and dist.get_rank() != 1:
            for one in model.parameters():
                one.grad.nan_to_num_(0.0, 0.0, 0.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 256.0 / (1 + step)


def _embedded(step: int) -> torch.Tensor:
    make = torch.Generator().manual_seed(100 * dist.get_rank() + step)
    return torch.randn(8, 6, generator=make)
