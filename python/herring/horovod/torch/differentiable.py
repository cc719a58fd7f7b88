"""Collectives that autograd tracks, with the same gradients as in Horovod.

In a backward pass, operations are named after those of the forward pass, so that each rank may
reach several of them in a different order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import herring
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import Average, Sum, require_linear
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.common.starter import Reduction
from herring.horovod.torch.starts import Starter


def _backward_name(call: Call) -> str:
    return f"{call.name.removeprefix('horovod.')}.gradient"


def _run(
    ctx: Any,
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *options: Any,
) -> tuple[torch.Tensor, ...]:
    """Runs a method of `Starter` on tensors, and stores in `ctx` what the backward pass needs."""
    grouped = kind.startswith("grouped")
    call = getattr(Starter(name, process_set), kind)(tensors if grouped else tensors[0], *options)
    ctx.kind, ctx.name, ctx.process_set = kind, _backward_name(call), process_set
    found = call.result()
    return tuple(found) if grouped else (found,)


class _Reducing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        name: str | None,
        how: Reduction,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = how
        return _run(ctx, kind, tensors, name, process_set, how)


class _Reduced(_Reducing):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        require_linear(ctx.how.op, ctx.kind, "detach()")
        found = _Reduced.apply(ctx.kind, ctx.name, ctx.how, ctx.process_set, *gradients)
        return None, None, None, None, *found


def allreduce(
    tensor: torch.Tensor, name: str | None, how: Reduction, process_set: ProcessSet
) -> torch.Tensor:
    """Reduces a tensor over all ranks; its gradient is reduced in the same way."""
    return _Reduced.apply("allreduce", name, how, process_set, tensor)[0]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], name: str | None, how: Reduction, process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Reduces a list of tensors over all ranks; their gradients are reduced in the same way."""
    return _Reduced.apply("grouped_allreduce", name, how, process_set, *tensors)


def _rows_before(rows: int, name: str, process_set: ProcessSet) -> int:
    """Returns how many of the gathered rows come from lower ranks; `rows` is this rank's number."""
    own = torch.tensor([rows], device="cpu")
    lengths = Starter(name, process_set).allgather(own).result()
    return int(lengths[: process_set.rank()].sum())


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kind: str, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        found = _run(ctx, kind, tensors, name, process_set)
        ctx.shapes = [tensor.shape for tensor in tensors]
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        kind = ctx.kind.replace("allgather", "allreduce")
        wholes = _Reduced.apply(kind, ctx.name, Reduction(Average), ctx.process_set, *gradients)
        parts = []
        for i, (whole, shape) in enumerate(zip(wholes, ctx.shapes)):
            rows = shape[0] if shape else 1
            first = _rows_before(rows, f"{ctx.name}.rows.{i}", ctx.process_set)
            parts.append(whole.narrow(0, first, rows).reshape(shape))
        return None, None, None, *parts


def allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
    """Concatenates all ranks' tensors; a gradient is the average over all ranks, for own rows."""
    return _Gathered.apply("allgather", name, process_set, tensor)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Concatenates each tensor of a list over all ranks; gradients are averages for own rows."""
    return _Gathered.apply("grouped_allgather", name, process_set, *tensors)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root = root
        return _run(ctx, "broadcast", [tensor], name, process_set, root)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = allreduce(gradient, ctx.name, Reduction(Average), ctx.process_set)
        mine = found if herring.rank() == ctx.root else torch.zeros_like(found)
        return mine, None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> torch.Tensor:
    """Copies the root's tensor; the root's gradient is the average, all others are zeros."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ((found, received),) = _run(ctx, "alltoall", [tensor], name, process_set, splits)
        ctx.splits, ctx.shape = received.tolist(), tensor.shape
        ctx.mark_non_differentiable(received)
        return found, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        found, _ = _AllToAll.apply(gradient, ctx.splits, ctx.name, ctx.process_set)
        return found.reshape(ctx.shape), None, None, None


def alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exchanges rows and returns how many came from each rank; gradients are sent back."""
    return _AllToAll.apply(tensor, splits, name, process_set)


class _Scattered(_Reducing):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        how, process_set = ctx.how, ctx.process_set
        require_linear(how.op, ctx.kind, "detach()")
        factor = how.prescale * how.postscale * (process_set.size() if how.op == Sum else 1)
        sent = gradients if factor == 1 else [one * factor for one in gradients]
        kind = ctx.kind.replace("reducescatter", "allgather")
        return None, None, None, None, *_Gathered.apply(kind, ctx.name, process_set, *sent)


def reducescatter(
    tensor: torch.Tensor, name: str | None, how: Reduction, process_set: ProcessSet
) -> torch.Tensor:
    """Reduces a tensor and returns this rank's block; gradients are gathered.

    If the operator is Sum, the gathered gradients are multiplied by the number of ranks.
    """
    return _Scattered.apply("reducescatter", name, how, process_set, tensor)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], name: str | None, how: Reduction, process_set: ProcessSet
) -> tuple[torch.Tensor, ...]:
    """Reduces and scatters each tensor of a list; gradients are gathered as for one tensor."""
    return _Scattered.apply("grouped_reducescatter", name, how, process_set, *tensors)
