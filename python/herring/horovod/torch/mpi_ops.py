"""The collectives of Horovod's API on tensors.

Names ending with ``_`` write into the tensors given, others return new ones. Those with ``async``
return an integer handle for `synchronize` and `poll`. Operations match across ranks by `name`, or
without one by the number of the call of their kind. All take `process_set`, whose ranks alone call
them. Those that return new tensors and wait (`allreduce`, `allgather`, ...) are seen by autograd;
gradients are averaged over ranks as in Horovod.

What one rank refuses, or on which ranks disagree, fails with the same error on all of them, and
later calls go on. Errors of single arguments are `herring.InvalidArgumentError`, a ValueError;
what fails later is a `HorovodInternalError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.horovod.common import waiting
from herring.horovod.common.face import *  # noqa: F403
from herring.horovod.common.face import __all__ as __all__
from herring.horovod.common.handles import SparseHandle, poll, synchronize
from herring.horovod.common.operators import (
    Average,
    operator_or_average,
)
from herring.horovod.common.process_sets import ProcessSet, global_process_set
from herring.horovod.common.starter import Reduction
from herring.horovod.common.waiting import barrier
from herring.horovod.torch import differentiable
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
    """Starts an `allreduce`, without a gradient; returns its handle."""
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
    """Starts an `allreduce_`; leave the tensor alone until `synchronize` has returned it."""
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

    Averages and scaled sums of integers are computed in float64 and cut towards zero.

    Args:
      tensor: any shape; float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8 or
        bool; alike on all ranks.
      average: older than `op`: True is Average, False is Sum.
      name: identifies the operation across ranks; None numbers the calls.
      compression: `Compression.none`, `Compression.fp16` or a class like these.
      op: Average (None), Sum, Adasum (floats, and a power of two of ranks), Min, Max or Product.
      prescale_factor: multiplies each rank's values first.
      postscale_factor: multiplies the result.
      process_set: who takes part.

    Returns:
      A new tensor. Its gradient is reduced in the same way (Average and Sum only).

    Raises:
      InvalidArgumentError: no such operator, dtype or layout; a name that is in flight; a process
        set that is not registered, or without this rank.
      HorovodInternalError: ranks disagree (MismatchError), one is gone (PeerLostError) or missing
        (TimeoutError).
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
    """Reduces a tensor over all ranks in place, and returns it; otherwise as `allreduce`."""
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
    """Starts a `grouped_allreduce`, without a gradient; returns its handle."""
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
    """Starts a `grouped_allreduce_`; returns its handle."""
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
    """Reduces a list of tensors, of any shapes and dtypes, as one operation: all of it or none.

    Args and errors as in `allreduce`.

    Returns:
      New tensors, as a list.
    """
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
    """Reduces a list of tensors in place and returns it; otherwise as `grouped_allreduce`."""
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
    """Starts an all-reduce of a sparse COO tensor: all ranks get the entries of all.

    Args:
      tensor: sparse, the same shape and sparse dimensions on all ranks, any number of entries.
      name: as in `allreduce`.
      op: Average or Sum.
      process_set: as in `allreduce`.

    Returns:
      A handle: `synchronize(handle)`, or `handle()`, returns a new coalesced tensor.
    """
    return Starter(name, process_set).sparse_allreduce(tensor, op).handle_of(SparseHandle)


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Starts an `allgather`, without a gradient; returns its handle."""
    return Starter(name, process_set).allgather(tensor).handle()


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks. A scalar counts as [1].
      name: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A new tensor [sum of n, ...]; each rank's gradient is the average of all ranks' for its rows.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return differentiable.allgather(tensor, name, process_set)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `grouped_allgather`, without a gradient; returns its handle."""
    return Starter(name, process_set).grouped_allgather(tensors).handle()


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Concatenates each tensor of a list over all ranks, as one operation; as `allgather`."""
    return list(differentiable.grouped_allgather(tensors, name, process_set))


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `broadcast`, without a gradient; returns its handle."""
    return Starter(name, process_set).broadcast(tensor, root_rank).handle()


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts a `broadcast_`; leave the tensor alone until `synchronize` has returned it."""
    return Starter(name, process_set).broadcast(tensor, root_rank, in_place=True).handle()


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Gives all ranks the tensor of one.

    Args:
      tensor: alike on all ranks.
      root_rank: whose it is: a rank of the job, also in a process set.
      name: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A new tensor. The root's gradient is the average of all ranks', the others' are zeros.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
    """
    return differentiable.broadcast(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Gives all ranks the tensor of one, in place, and returns it; as `broadcast`."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Starts an `alltoall`, without a gradient; returns its handle.

    `synchronize` returns the tensor and the rows that came from each rank, without `splits` too.
    """
    return Starter(name, process_set).alltoall(tensor, splits).handle()


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends rows of the tensor to each rank, and concatenates what comes in, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      splits: rows for each rank, numbers that add up to n; None: equal parts.
      name: as in `allreduce`.
      process_set: as in `allreduce`.

    Returns:
      A new tensor, whose gradient goes the way back; with `splits` also the number of rows that
      came from each rank (int32 [ranks], on the CPU).

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
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
    """Starts a `reducescatter`, without a gradient; returns its handle."""
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
    """Reduces a tensor over all ranks and leaves each a block of dimension 0.

    Args:
      tensor: [n, ...], alike on all ranks; the first n % ranks blocks have one row more.
      name: as in `allreduce`.
      compression: as in `allreduce`.
      op: Average, Sum, Min, Max or Product.
      process_set: as in `allreduce`.
      prescale_factor: as in `allreduce`.
      postscale_factor: as in `allreduce`.

    Returns:
      A new tensor. Gradients are gathered, and for Sum multiplied by the number of ranks, as
      Horovod has it.

    Raises:
      InvalidArgumentError, HorovodInternalError: as `allreduce`.
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
    """Starts a `grouped_reducescatter`, without a gradient; returns its handle."""
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
    """Reduces and scatters each tensor of a list, as one operation; as `reducescatter`."""
    how = Reduction(op, prescale_factor, postscale_factor)
    sent, contexts = _compressed(compression, tensors)
    found = differentiable.grouped_reducescatter(sent, name, how, process_set)
    return [compression.decompress(one, context) for one, context in zip(found, contexts)]


def join(device: int = -1) -> int:
    """Lets the others go on without this rank, until every rank has called it.

    The others' all-reduces and `DistributedOptimizer` steps are done without it: it contributes
    nothing, and averages divide by the ranks that are left (in Horovod by all ranks, with zeros of
    those that have joined). Anything else that a rank calls meanwhile fails. Names who has joined.

    Args:
      device: no meaning.

    Returns:
      The rank that was last.

    Raises:
      HorovodInternalError: a rank is gone, or not all have joined in time.
    """
    del device
    return waiting.join()
