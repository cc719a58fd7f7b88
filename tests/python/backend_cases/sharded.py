"""What shards tensors over the backend: sharded state dictionaries, and tensors of their kind."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .support import case, gloo, same


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
