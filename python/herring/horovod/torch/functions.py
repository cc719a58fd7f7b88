"""Copies parameters and optimizer state from one rank to all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from herring.errors import InvalidArgumentError
from herring.horovod.common.exceptions import internal_errors
from herring.horovod.common.objects import allgather_object, broadcast_object
from herring.horovod.common.process_sets import ProcessSet, global_process_set, group_of, root_in
from herring.torch import state

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies parameters and buffers from one rank to all ranks, in place (collective).

    Args:
      params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`. Values that
        are not tensors are ignored.

    Raises:
      InvalidArgumentError: `params` is something else, or `root_rank` is not in the process set.
    """
    if isinstance(params, Mapping):
        listed = sorted(params.items(), key=lambda item: str(item[0]))
    else:
        try:
            listed = [
                (str(i), each) if isinstance(each, torch.Tensor) else (each[0], each[1])
                for i, each in enumerate(params)
            ]
        except (TypeError, IndexError, KeyError):
            raise InvalidArgumentError(
                f"broadcast_parameters takes model.state_dict() or model.named_parameters(), not "
                f"{type(params).__name__}"
            ) from None
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    with internal_errors():
        state.broadcast_parameters(listed, root, name="horovod.parameters", group=group)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copies the state and options of an optimizer from one rank to all ranks (collective).

    This works for every torch optimizer, also if only the root has state yet. If the root has none,
    parameters that require a gradient and have none get zeros, as with Horovod.

    Args:
      optimizer: an optimizer of the same parameters on every rank.
      model: ignored.
    """
    del model
    group = group_of(process_set)
    root = root_in(process_set, root_rank)
    with internal_errors():
        state.broadcast_optimizer_state(optimizer, root, name="horovod.optimizer", group=group)
    if not optimizer.state:
        for parameter in (p for entries in optimizer.param_groups for p in entries["params"]):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
