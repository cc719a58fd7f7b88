"""Collectives with a gradient; their results are new tensors in the autograd graph.

Gradients are those of the sum of all ranks' losses. Each function is also collective in the
backward pass: either all ranks let gradients flow through it or none. The functions can be
differentiated twice. With ``group=``, "all ranks" means the ranks of the group, forward and
backward.

Args:
  op: "average" or "sum".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from herring.arrays.arguments import operator_of
from herring.arrays.calls import called, named
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.torch import functions
from herring.torch.operators import Operator
from herring.torch.tensors import require_strided

__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "reduce_scatter"]


def allreduce(
    tensor: torch.Tensor,
    op: Operator = "average",
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks.

    Args:
      tensor: Any shape, equal on all ranks; float16, bfloat16, float32 or float64.

    Returns:
      A new tensor. Its gradient is reduced in the same way.

    Raises:
      InvalidArgumentError: `op` is something else, or the tensor is sparse or has another dtype.
    """
    name = _checked(tensor, "allreduce", name, group, op)
    return _AllReduce.apply(tensor, operator_of(op), name, group)


def broadcast(
    tensor: torch.Tensor, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor:
    """Gives all ranks the tensor of rank `root`.

    Args:
      tensor: Equal shape and dtype on all ranks; only the values of `root` are used.

    Returns:
      A new tensor. In the backward pass the root gets the sum of all gradients, and the other ranks
      get zeros.
    """
    name = _checked(tensor, "broadcast", name, group)
    return _Broadcast.apply(tensor, root, name, group)


def allgather(
    tensor: torch.Tensor, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks.

    Returns:
      A new tensor [sum of n, ...]. In the backward pass each rank gets the sum of all gradients of
      its rows.
    """
    return _AllGather.apply(tensor, _checked(tensor, "allgather", name, group), group)


def reduce_scatter(
    tensor: torch.Tensor,
    op: Operator = "average",
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces over all ranks and gives each rank its block along dimension 0.

    Args:
      tensor: [n, ...], equal shape and dtype on all ranks.

    Returns:
      A new tensor with this rank's block. Gradients are gathered in the backward pass.

    Raises:
      InvalidArgumentError: `op` is something else, or the tensor cannot be used.
    """
    name = _checked(tensor, "reduce_scatter", name, group, op)
    return _ReduceScatter.apply(tensor, operator_of(op), name, group)


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Sends the r-th block of this rank's tensor to rank r, and concatenates the blocks received.

    Args:
      tensor: [n, ...].
      splits: The number of rows for each rank; None cuts n into equal parts.

    Returns:
      A new tensor with the blocks for this rank, in rank order. In the backward pass gradients are
      sent back to the ranks of their blocks.

    Raises:
      InvalidArgumentError: The splits do not fit the tensor.
    """
    return _AllToAll.apply(tensor, splits, _checked(tensor, "alltoall", name, group), group)


def _checked(
    tensor: torch.Tensor, kind: str, name: str | None, group: Group | None, op: Operator = "sum"
) -> str:
    """Refuses tensors and operators without a gradient here; returns the name of the call."""
    name = named(name, kind, group)
    first = f"{name}.lengths" if kind == "allgather" else name  # the others' first operation
    with called(kind, first, group):
        require_strided(tensor, kind)
        if operator_of(op) not in ("average", "sum"):
            raise InvalidArgumentError(
                f"{kind}: op is {op!r}; only 'average' and 'sum' have a gradient"
            )
    return name


def _gradient_name(name: str) -> str:
    # The name follows the forward call's, so that ranks may go back through calls in any order.
    return f"{name}.gradient"


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, op: Operator, name: str, group: Group | None
    ) -> torch.Tensor:
        ctx.options = op, _gradient_name(name), group
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return functions.allreduce(copy, op, name=name, group=group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, name, group = ctx.options
        return allreduce(gradient, op, name=name, group=group), None, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root: int, name: str, group: Group | None
    ) -> torch.Tensor:
        ctx.options = root, _gradient_name(name), group
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return functions.broadcast(copy, root, name=name, group=group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        root, name, group = ctx.options
        total = allreduce(gradient, "sum", name=name, group=group)
        mine = total if scope_of(group).rank == root else torch.zeros_like(total)
        return mine, None, None, None


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str, group: Group | None) -> torch.Tensor:
        ctx.shape = tensor.shape
        ctx.options = _gradient_name(name), group
        own = tensor.detach().contiguous()
        lengths = torch.tensor([len(own) if own.dim() else 1], device="cpu")
        every = functions.allgather(lengths, name=f"{name}.lengths", group=group)
        ctx.lengths = every.tolist()
        return functions.allgather(own, name=name, group=group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name, group = ctx.options
        pieces = alltoall(gradient, ctx.lengths, name=name, group=group)
        return pieces.reshape(scope_of(group).size, *ctx.shape).sum(0), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, op: Operator, name: str, group: Group | None
    ) -> torch.Tensor:
        ctx.options = op, tensor.shape, _gradient_name(name), group
        return functions.reduce_scatter(tensor.detach().contiguous(), op, name=name, group=group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        op, shape, name, group = ctx.options
        total = allgather(gradient, name=name, group=group).reshape(shape)
        return total / scope_of(group).size if op == "average" else total, None, None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Sequence[int] | None, name: str, group: Group | None
    ) -> torch.Tensor:
        own = tensor.detach().contiguous()
        ctx.options = _gradient_name(name), group
        result = functions.alltoall(own, splits, name=name, group=group)
        ctx.splits = None
        if splits is not None:
            rows = torch.tensor([int(n) for n in splits], device="cpu")
            every = [1] * scope_of(group).size
            received = functions.alltoall(rows, every, name=f"{name}.splits", group=group)
            ctx.splits = received.tolist()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        name, group = ctx.options
        return alltoall(gradient, ctx.splits, name=name, group=group), None, None, None
