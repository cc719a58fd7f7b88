"""Collectives as autograd sees them, with the gradients that Horovod gives them.

In a backward pass operations are named after those of the forward pass, so that ranks may pass
through several in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import herring
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import Average, Sum, require_linear
from herring.horovod.common.process_sets import ProcessSet
from herring.horovod.torch import starts

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "GroupedAllGather",
    "GroupedAllReduce",
    "GroupedReduceScatter",
    "ReduceScatter",
]


def _backward_name(call: Call) -> str:
    return f"{call.name.removeprefix('horovod.')}.gradient"


class AllReduce(torch.autograd.Function):
    """Gradients are reduced as the tensor was."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *options: Any) -> torch.Tensor:
        call = starts.start_allreduce(tensor, name, *options, in_place=False)
        ctx.name, ctx.options = _backward_name(call), options
        return call.result()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        require_linear(ctx.options[0], "allreduce", "detach()")
        found = AllReduce.apply(gradient, ctx.name, *ctx.options)
        return found, *[None] * (1 + len(ctx.options))


class GroupedAllReduce(torch.autograd.Function):
    """As `AllReduce`, for a list."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: Any,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        options = op, prescale, postscale, process_set
        call = starts.start_grouped_allreduce(tensors, name, *options, in_place=False)
        ctx.name, ctx.options = _backward_name(call), options
        return tuple(call.result())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        require_linear(ctx.options[0], "grouped_allreduce", "detach()")
        found = GroupedAllReduce.apply(ctx.name, *ctx.options, *gradients)
        return *[None] * 5, *found


def _rows(tensor: torch.Tensor) -> int:
    return len(tensor) if tensor.dim() else 1


def _rows_before(rows: int, name: str, process_set: ProcessSet) -> int:
    """The rows that lower ranks have of what was gathered."""
    lengths = starts.start_allgather(torch.tensor([rows]), name, process_set).result()
    return int(lengths[: process_set.rank()].sum())


class AllGather(torch.autograd.Function):
    """A rank's gradient is the average of all ranks' for its rows."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        call = starts.start_allgather(tensor, name, process_set)
        ctx.name, ctx.process_set, ctx.shape = _backward_name(call), process_set, tensor.shape
        ctx.rows = _rows(tensor)
        return call.result()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        options = Average, 1.0, 1.0, ctx.process_set
        found = AllReduce.apply(gradient, ctx.name, *options)
        first = _rows_before(ctx.rows, f"{ctx.name}.rows", ctx.process_set)
        return found.narrow(0, first, ctx.rows).reshape(ctx.shape), None, None


class GroupedAllGather(torch.autograd.Function):
    """As `AllGather`, for a list."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        call = starts.start_grouped_allgather(tensors, name, process_set)
        ctx.name, ctx.process_set = _backward_name(call), process_set
        ctx.shapes = [tensor.shape for tensor in tensors]
        ctx.rows = [_rows(tensor) for tensor in tensors]
        return tuple(call.result())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        options = Average, 1.0, 1.0, ctx.process_set
        found = GroupedAllReduce.apply(ctx.name, *options, *gradients)
        parts = []
        for i, (whole, rows, shape) in enumerate(zip(found, ctx.rows, ctx.shapes)):
            first = _rows_before(rows, f"{ctx.name}.rows.{i}", ctx.process_set)
            parts.append(whole.narrow(0, first, rows).reshape(shape))
        return None, None, *parts


class Broadcast(torch.autograd.Function):
    """The root's gradient is the average of all ranks'."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        call = starts.start_broadcast(tensor, root, name, process_set, in_place=False)
        ctx.name, ctx.process_set, ctx.root = _backward_name(call), process_set, root
        return call.result()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        options = Average, 1.0, 1.0, ctx.process_set
        found = AllReduce.apply(gradient, ctx.name, *options)
        mine = found if herring.rank() == ctx.root else torch.zeros_like(found)
        return mine, None, None, None


class AllToAll(torch.autograd.Function):
    """Gradients go the way back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        call = starts.start_alltoall(tensor, splits, name, process_set)
        ctx.name, ctx.process_set = _backward_name(call), process_set
        found, received = call.result()
        ctx.splits, ctx.shape = received.tolist(), tensor.shape
        ctx.mark_non_differentiable(received)
        return found, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        found, _ = AllToAll.apply(gradient, ctx.splits, ctx.name, ctx.process_set)
        return found.reshape(ctx.shape), None, None, None


def _scattered(gradient: torch.Tensor, options: Sequence[Any]) -> torch.Tensor:
    op, prescale, postscale, process_set = options
    factor = prescale * postscale * (process_set.size() if op == Sum else 1)
    return gradient if factor == 1 else gradient * factor


class ReduceScatter(torch.autograd.Function):
    """Gradients are gathered, and multiplied by the number of ranks where the tensor was summed."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, *options: Any) -> torch.Tensor:
        call = starts.start_reducescatter(tensor, name, *options)
        ctx.name, ctx.options = _backward_name(call), options
        return call.result()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        require_linear(ctx.options[0], "reducescatter", "detach()")
        whole = AllGather.apply(_scattered(gradient, ctx.options), ctx.name, ctx.options[3])
        return whole, *[None] * (1 + len(ctx.options))


class GroupedReduceScatter(torch.autograd.Function):
    """As `ReduceScatter`, for a list."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: Any,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        options = op, prescale, postscale, process_set
        call = starts.start_grouped_reducescatter(tensors, name, *options)
        ctx.name, ctx.options = _backward_name(call), options
        return tuple(call.result())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        require_linear(ctx.options[0], "grouped_reducescatter", "detach()")
        sent = [_scattered(gradient, ctx.options) for gradient in gradients]
        return *[None] * 5, *GroupedAllGather.apply(ctx.name, ctx.options[3], *sent)
