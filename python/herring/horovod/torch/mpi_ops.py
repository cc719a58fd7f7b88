"""The collectives of Horovod's API on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.horovod.common import face, waiting
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.handles import SparseHandle, poll, synchronize
from herring.horovod.common.operators import Average, operator_or_average
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.common.starter import Reduction
from herring.horovod.common.waiting import barrier
from herring.horovod.torch import differentiable
from herring.horovod.torch.compiled import untraced
from herring.horovod.torch.compression import Compression
from herring.horovod.torch.starts import Starter

__all__ = [
    *__all__,
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce of a tensor; `synchronize` returns a new tensor."""
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).allreduce(tensor, how).handle()


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce of a tensor in place; `synchronize` returns `tensor`."""
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).allreduce(tensor, how, in_place=True).handle()


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks.

    Averages and scaled sums of integers are computed in float64 and truncated.

    Args:
      tensor: a tensor of any shape, the same shape and dtype on all ranks: float16, bfloat16,
        float32, float64, int8, int16, int32, int64, uint8 or bool.

    Returns:
      A new tensor. Its gradient is reduced in the same way (Average and Sum only).
    """
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    sent, context = compression.compress(tensor)
    found = differentiable.allreduce(sent, name, how, process_set)
    return compression.decompress(found, context)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks in place and returns it."""
    return synchronize(
        allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)
    )


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce of a list; `synchronize` returns a list of new tensors."""
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_allreduce(tensors, how).handle()


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-reduce of a list in place; `synchronize` returns the list."""
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_allreduce(tensors, how, in_place=True).handle()


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces a list of tensors over all ranks as one operation; returns new tensors."""
    how = Reduction(operator_or_average(op, average), prescale_factor, postscale_factor)
    sent, contexts = _compressed(compression, tensors)
    found = differentiable.grouped_allreduce(sent, name, how, process_set)
    return [compression.decompress(one, context) for one, context in zip(found, contexts)]


def _compressed(
    compression: Any, tensors: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduces a list of tensors over all ranks in place and returns the list."""
    return synchronize(
        grouped_allreduce_async_(
            tensors, average, name, op, prescale_factor, postscale_factor, process_set
        )
    )


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> SparseHandle:
    """Starts an all-reduce of a sparse COO tensor, whose entries every rank gathers and adds up.

    Both `synchronize(handle)` and `handle()` return a new coalesced tensor.

    Args:
      tensor: a sparse COO tensor with the same shape and sparse dimensions on all ranks, and any
        number of entries.
      op: Average or Sum.
    """
    return Starter(name, process_set).sparse_allreduce(tensor, op).handle_of(SparseHandle)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an all-gather of a tensor; `synchronize` returns a new tensor."""
    return Starter(name, process_set).allgather(tensor).handle()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: a tensor of shape [n, ...]; n may differ between ranks. A scalar counts as [1].

    Returns:
      A new tensor of shape [sum of n, ...]. Each rank's gradient is the average over all ranks of
      the gradients of its rows.
    """
    return differentiable.allgather(tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-gather of a list; `synchronize` returns a list of new tensors."""
    return Starter(name, process_set).grouped_allgather(tensors).handle()


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Concatenates each tensor of a list over all ranks, as one operation."""
    return list(differentiable.grouped_allgather(tensors, name, process_set))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast of a tensor; `synchronize` returns a new tensor."""
    return Starter(name, process_set).broadcast(tensor, root_rank).handle()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a broadcast of a tensor in place; `synchronize` returns `tensor`."""
    return Starter(name, process_set).broadcast(tensor, root_rank, in_place=True).handle()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copies a tensor from one rank to all ranks.

    Args:
      tensor: a tensor with the same shape and dtype on all ranks.

    Returns:
      A new tensor. The root's gradient is the average of all ranks' gradients; the gradients of the
      other ranks are zeros.
    """
    return differentiable.broadcast(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copies a tensor from one rank to all ranks in place and returns it."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an all-to-all of a tensor.

    `synchronize` returns the new tensor and, also without `splits`, the number of rows from each
    rank.
    """
    return Starter(name, process_set).alltoall(tensor, splits).handle()


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends rows of a tensor to each rank, and concatenates the received rows in rank order.

    Args:
      tensor: a tensor of shape [n, ...]; n may differ between ranks.
      splits: the number of rows for each rank, which add up to n; None sends equal parts.

    Returns:
      A new tensor with the received rows; its gradient is sent back to the ranks that the rows came
      from. With `splits`, also the number of rows from each rank (int32 [ranks], on the CPU).
    """
    found, received = differentiable.alltoall(tensor, splits, name, process_set)
    return found if splits is None else (found, received)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter of a tensor; `synchronize` returns a new tensor."""
    how = Reduction(op, prescale_factor, postscale_factor)
    return Starter(name, process_set).reducescatter(tensor, how).handle()


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and gives each rank one block of the result.

    Args:
      tensor: a tensor of shape [n, ...], the same on all ranks. It is divided along dimension 0;
        the first n % ranks blocks have one row more than the others.

    Returns:
      A new tensor. Gradients are gathered, and multiplied by the number of ranks for Sum, as in
      Horovod.
    """
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, context = compression.compress(tensor)
    found = differentiable.reducescatter(sent, name, how, process_set)
    return compression.decompress(found, context)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Starts a reduce-scatter of a list; `synchronize` returns a list of new tensors."""
    how = Reduction(op, prescale_factor, postscale_factor)
    return Starter(name, process_set).grouped_reducescatter(tensors, how).handle()


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduces and scatters each tensor of a list over all ranks, as one operation."""
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, contexts = _compressed(compression, tensors)
    found = differentiable.grouped_reducescatter(sent, name, how, process_set)
    return [compression.decompress(one, context) for one, context in zip(found, contexts)]


def join(device: int = -1) -> int:
    """Lets the other ranks continue without this rank, until every rank has called `join`.

    All-reduces and `DistributedOptimizer` steps of the other ranks complete without this rank.
    Averages divide by the number of all ranks, with zeros for those that have joined, unless
    ``init(joined_as_zeros=False)`` was called. Any other collective fails meanwhile, with an error
    that names the ranks that have joined.

    Returns:
      The rank that called `join` last.

    Raises:
      HorovodInternalError: a rank was lost, or not all ranks joined in time.
    """
    del device
    return waiting.join()


# A compiled function calls them as they are, between two of its graphs.
for _name in set(__all__).difference(face.__all__):
    globals()[_name] = untraced(globals()[_name])
    globals()[_name].__module__ = __name__  # where pickle finds it
