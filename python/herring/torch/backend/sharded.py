"""The device of a `ShardedTensor`, as in the sharded state dictionaries of FSDP.

Where a rank has no shard, and for collectives, torch takes the CPU for groups of gloo. For all
others that serve CUDA it asks for the present GPU, and there may be none.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch


def answer_for_sharded_tensors(ours: Callable[[Any], bool]) -> None:
    """Lets tensors in groups of Herring say where their shards are; others get torch's answer."""
    api: Any = importlib.import_module("torch.distributed._shard.sharded_tensor.api")
    preferred = api.ShardedTensor._get_preferred_device
    if hasattr(preferred, "of_herring"):
        return
    asked = torch.Tensor.device.__get__
    original = api._SHARDED_OPS[asked]

    def preferred_device(tensor: Any) -> torch.device:
        return _place(tensor) if ours(tensor._process_group) else preferred(tensor)

    def device(types: Any, args: Any = (), kwargs: Any = None, pg: Any = None) -> Any:
        tensor = args[0]
        elsewhere = isinstance(tensor, api.ShardedTensor) and not tensor._local_shards
        return _place(tensor) if elsewhere and ours(pg) else original(types, args, kwargs, pg)

    preferred_device.of_herring = True  # type: ignore[attr-defined]
    api.ShardedTensor._get_preferred_device = preferred_device
    api._SHARDED_OPS[asked] = device


def _place(tensor: Any) -> torch.device:
    """Returns the CPU, or this process's GPU if the tensor has shards on GPUs."""
    placements = (shard.placement for shard in tensor.metadata().shards_metadata)
    if any(place is not None and place.device().type == "cuda" for place in placements):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
