"""What shards tensors over the backend: sharded state dictionaries, and tensors of their kind."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import herring.torch

from .support import case, gloo, raises, same

TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


def _folder(group: Any) -> str:
    """Returns a new folder, the same one on all ranks."""
    made = [tempfile.mkdtemp()] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(made, group=group)
    return str(made[0])


def _on_both(what: Callable[[Any], list[torch.Tensor]]) -> None:
    """Asserts that this gives the same on groups of the backend and of gloo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch advises to use DTensor
        found, wanted = what(dist.group.WORLD), what(gloo())
    assert len(found) == len(wanted), (found, wanted)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)


def _gathered(group: Any) -> list[torch.Tensor]:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    places = [f"rank:{rank}/cpu" for rank in range(dist.get_world_size())]
    spec = ChunkShardingSpec(dim=0, placements=places)
    few = sharded_tensor.full(spec, (2, 5), 3.0, process_group=group)  # ranks 2 and 3 have nothing
    assert few.device == few.cpu(process_group=group).device == torch.device("cpu")
    whole = torch.zeros(7, 3)
    rows = sharded_tensor.ones(spec, 7, 3, process_group=group)
    rows.gather(0, whole if dist.get_rank() == 0 else None)
    return [whole]


def _restored(group: Any) -> list[torch.Tensor]:
    from torch.distributed import checkpoint
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    sharded = FullyShardedDataParallel(model, group, device_id=torch.device("cpu"))
    folder = _folder(group)
    with FullyShardedDataParallel.state_dict_type(sharded, StateDictType.SHARDED_STATE_DICT):
        state = sharded.state_dict()
        checkpoint.save({"model": state}, checkpoint_id=folder, process_group=group)
        for tensor in state.values():
            for shard in tensor.local_shards():
                shard.tensor.zero_()
        checkpoint.load({"model": state}, checkpoint_id=folder, process_group=group)
    return [shard.tensor for tensor in state.values() for shard in tensor.local_shards()]


@case
def sharded_tensors() -> None:
    """Ranks without a shard know the device, and shards are gathered where there is no GPU."""
    _on_both(_gathered)


@case
def sharded_checkpoints() -> None:
    """FSDP's sharded state is saved and loaded, although some ranks have no part of a bias."""
    _on_both(_restored)


def _pair(start: float) -> Any:
    values = torch.arange(start, start + 3)
    return TwoTensor(values, values * 10)


def _check_moves(rank: int, size: int) -> None:
    found, part, gathered = _pair(rank), _pair(0), [_pair(0) for _ in range(size)]
    dist.broadcast(found, 1)
    dist.scatter(part, [_pair(5 * one) for one in range(size)] if rank == 0 else None)
    dist.all_gather(gathered, _pair(7 * rank))
    traded, told = [_pair(0) for _ in range(size)], _pair(0)
    dist.all_to_all(traded, [_pair(9 * rank + one) for one in range(size)])
    if rank == 0:
        dist.send(_pair(4), 1)
    elif rank == 1:
        dist.recv(told, 0)
    wanted = [1, 5 * rank, 4 if rank == 1 else 0, *range(0, 7 * size, 7)]
    wanted += [9 * one + rank for one in range(size)]
    for one, start in zip([found, part, told, *gathered, *traded], wanted, strict=True):
        same(one.a, _pair(start).a)
        same(one.b, _pair(start).b)


@case
def tensors_that_hold_tensors() -> None:
    """What is inside is moved, and nothing reads the address of a tensor without memory.

    Gloo's works end before the second tensor of a pair has come, so it is no measure here.
    """
    _check_moves(dist.get_rank(), dist.get_world_size())
    # What a functional collective has not waited for yet is taken as what it becomes.
    total = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    dist.all_reduce(total)
    same(total.wait(), torch.full((4,), float(dist.get_world_size() ** 2)))
    pair = TwoTensor(torch.ones(3), torch.ones(3))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    if TORCH < (2, 14):  # from then on, the class of the tensor decides
        raises(herring.InvalidArgumentError, "TwoTensor", dist.all_reduce, pair)
        raises(herring.InvalidArgumentError, "to_local()", dist.broadcast, sharded, 0)
    raises(herring.InvalidArgumentError, "TwoTensor", herring.torch.allreduce, pair)
    raises(herring.InvalidArgumentError, "DTensor", herring.torch.broadcast, sharded, 0)
