"""Collectives with a gradient of their own: new tensors, which belong to the autograd graph.

Gradients are those of the sum of all ranks' losses. Each function is collective in the backward
pass too: all ranks must let gradients flow through it, or none. They can be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import herring
from herring.collectives import called
from herring.errors import InvalidArgumentError
from herring.runtime import next_name
from herring.torch import functions

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reduce_scatter"]


def allreduce(
    tensor: torch.Tensor, op: str = "average", *, name: str | None = None
) -> torch.Tensor:
    """Reduces a tensor over all ranks.

    Args:
      tensor: any shape, alike on all ranks; float16, bfloat16, float32 or float64.
      op: "average" or "sum".
      name: identifies the operation across ranks; None numbers the calls.

    Returns:
      A new tensor. Its gradient is reduced in the same way.

    Raises:
      InvalidArgumentError: another op; otherwise as `herring.torch.allreduce`.
    """
    name = _require_linear(op, "allreduce", name)
    return _AllReduce.apply(tensor, op, name)


def broadcast(tensor: torch.Tensor, root: int = 0, *, name: str | None = None) -> torch.Tensor:
    """Gives all ranks the tensor of rank `root`.

    Args:
      tensor: alike on all ranks; on other ranks than `root` only shape and dtype count.
      root: a rank.
      name: identifies the operation across ranks; None numbers the calls.

    Returns:
      A new tensor. The root gets the sum of all gradients, the others zeros.
    """
    return _Broadcast.apply(tensor, root, name or next_name("broadcast"))


def allgather(tensor: torch.Tensor, *, name: str | None = None) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      name: identifies the operation across ranks; None numbers the calls.

    Returns:
      A new tensor [sum of n, ...]. Each rank gets the sum of all gradients of its rows.
    """
    return _AllGather.apply(tensor, name or next_name("allgather"))


def reduce_scatter(
    tensor: torch.Tensor, op: str = "average", *, name: str | None = None
) -> torch.Tensor:
    """Reduces over all ranks and gives each rank its block along dimension 0.

    Args:
      tensor: [n, ...], alike on all ranks.
      op: "average" or "sum".
      name: identifies the operation across ranks; None numbers the calls.

    Returns:
      A new tensor: this rank's block. Gradients are gathered.

    Raises:
      InvalidArgumentError: another op; otherwise as `herring.torch.reduce_scatter`.
    """
    name = _require_linear(op, "reduce_scatter", name)
    return _ReduceScatter.apply(tensor, op, name)


def alltoall(
    tensor: torch.Tensor, splits: Sequence[int] | None = None, *, name: str | None = None
) -> torch.Tensor:
    """Sends the r-th block of this rank's tensor to rank r, and concatenates what comes in.

    Args:
      tensor: [n, ...].
      splits: rows for each rank; None cuts n into equal parts.
      name: identifies the operation across ranks; None numbers the calls.

    Returns:
      A new tensor: the blocks for this rank, in rank order. Gradients go the way back.

    Raises:
      InvalidArgumentError: the splits do not fit the tensor.
    """
    return _AllToAll.apply(tensor, splits, name or next_name("alltoall"))


def _require_linear(op: str, kind: str, name: str | None) -> str:
    with called(kind, name) as full_name:
        if op not in ("average", "sum"):
            raise InvalidArgumentError(
                f"{kind}: op is {op!r}; with a gradient there are 'average' and 'sum'"
            )
    return full_name


def _gradient_name(name: str) -> str:
    # After the forward call, so that ranks may pass back through several in any order.
    return f"{name}.gradient"


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, name: str) -> torch.Tensor:
        ctx.options = op, _gradient_name(name)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return functions.allreduce(copy, op, name=name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, name = ctx.options
        return allreduce(gradient, op, name=name), None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str) -> torch.Tensor:
        ctx.options = root, _gradient_name(name)
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return functions.broadcast(copy, root, name=name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root, name = ctx.options
        total = allreduce(gradient, "sum", name=name)
        return total if herring.rank() == root else torch.zeros_like(total), None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str) -> torch.Tensor:
        ctx.shape = tensor.shape
        ctx.name = _gradient_name(name)
        own = tensor.detach().contiguous()
        lengths = torch.tensor([len(own) if own.dim() else 1])
        every = functions.allgather(lengths, name=f"{name}.lengths")
        ctx.lengths = every.tolist()
        return functions.allgather(own, name=name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        pieces = alltoall(gradient, ctx.lengths, name=ctx.name)
        return pieces.reshape(herring.size(), *ctx.shape).sum(0), None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, op: str, name: str) -> torch.Tensor:
        ctx.options = op, tensor.shape, _gradient_name(name)
        return functions.reduce_scatter(tensor.detach().contiguous(), op, name=name)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, shape, name = ctx.options
        total = allgather(gradient, name=name).reshape(shape)
        return total / herring.size() if op == "average" else total, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Sequence[int] | None, name: str
    ) -> torch.Tensor:
        own = tensor.detach().contiguous()
        ctx.name = _gradient_name(name)
        result = functions.alltoall(own, splits, name=name)
        ctx.splits = None
        if splits is not None:
            rows = torch.tensor([int(n) for n in splits])
            received = functions.alltoall(rows, [1] * herring.size(), name=f"{name}.splits")
            ctx.splits = received.tolist()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return alltoall(gradient, ctx.splits, name=ctx.name), None, None
