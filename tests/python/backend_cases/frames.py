"""Cases for torch's sharding wrappers, mostly compared with gloo."""

from __future__ import annotations

import copy
import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from .support import case, same


def _net() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8), torch.nn.Linear(8, 3)
    ).double()


def _train(model: torch.nn.Module, inputs: torch.Tensor, steps: int = 3) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    for _ in range(steps):
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _inputs(rank: int) -> torch.Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(rank)).double()


def _reference() -> torch.nn.Module:
    """Trains in one process with all ranks' rows; equal numbers of rows give the same mean."""
    model = _net()
    _train(model, torch.cat([_inputs(r) for r in range(dist.get_world_size())]))
    return model


def _close(found: dict[str, torch.Tensor], wanted: torch.nn.Module) -> None:
    for name, one in wanted.state_dict().items():
        torch.testing.assert_close(found[name], one, rtol=1e-9, atol=1e-11)


@case
def fsdp1() -> None:
    model = FullyShardedDataParallel(_net(), device_id=torch.get_default_device())
    _train(model, _inputs(dist.get_rank()))
    with FullyShardedDataParallel.summon_full_params(model):
        found = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    _close(found, _reference())


def _sharded(mesh: DeviceMesh | None, **options: Any) -> torch.nn.Module:
    model = _net()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _whole(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.full_tensor() for name, one in model.state_dict().items()}


@case
def fsdp2_and_hsdp() -> None:
    wanted = _reference()
    for mesh in (
        None,
        init_device_mesh(
            torch.get_default_device().type, (2, 2), mesh_dim_names=("copies", "shards")
        ),
    ):
        model = _sharded(mesh)
        _train(model, _inputs(dist.get_rank()))
        _close(_whole(model), wanted)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _sharded(None, mp_policy=policy)
    model.set_gradient_divide_factor(2.0) if hasattr(model, "set_gradient_divide_factor") else None
    _train(model, _inputs(dist.get_rank()))
    found = _whole(model)
    assert all(torch.isfinite(one).all() for one in found.values())
    for one in found.values():
        first = one.clone()
        dist.broadcast(first, 0)
        same(one, first)


@case
def dtensors_and_tensor_parallel() -> None:
    size = dist.get_world_size()
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    whole = torch.arange(float(size * 6)).view(size * 2, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    same(sharded.full_tensor(), whole)
    same(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    same(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    partial = DTensor.from_local(torch.ones(size, 2), mesh, [Partial()])
    same(partial.redistribute(mesh, [Shard(0)]).to_local(), torch.full((1, 2), float(size)))
    same(partial.full_tensor(), torch.full((size, 2), float(size)))
    uneven = torch.arange(float(size * 2 + 1))
    same(distribute_tensor(uneven, mesh, [Shard(0)]).full_tensor(), uneven)
    model = _net()
    plain = copy.deepcopy(model)
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    _train(model, _inputs(0))
    _train(plain, _inputs(0))
    found = {
        name: one.full_tensor() if isinstance(one, DTensor) else one
        for name, one in model.state_dict().items()
    }
    _close(found, plain)


@case
def checkpoints() -> None:
    model = _sharded(None)
    _train(model, _inputs(dist.get_rank()))
    kept = _whole(model)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, 0)
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder[0])
    other = _sharded(None)
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=folder[0])
    other.load_state_dict(state["model"])
    for name, one in _whole(other).items():
        same(one, kept[name])


@case
def compiled() -> None:
    size = dist.get_world_size()

    def step(tensor: torch.Tensor) -> torch.Tensor:
        total = tensor * 2
        dist.all_reduce(total)
        return total + 1

    whole = torch.compile(step, backend="aot_eager", fullgraph=True)
    same(whole(torch.ones(4)), torch.full((4,), 2.0 * size + 1))
    model = _net()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    _train(torch.compile(wrapped, backend="aot_eager"), _inputs(dist.get_rank()), 2)
    alone = _net()
    inputs = torch.cat([_inputs(r) for r in range(size)])
    _train(alone, inputs, 2)
    _close(dict(model.state_dict()), alone)
