"""The collectives of `herring` for torch tensors.

Every operation in place writes its result to the tensor's own memory and returns the tensor. If an
operation fails, the tensor's values are undefined. Tensors must be dense and contiguous. CPU
tensors are used where they are. `allreduce` and `broadcast` also use CUDA tensors where they are;
the GPU makes the copies in streams of its own. The other functions stage CUDA tensors through
pinned host memory, with one warning. Autograd does not see any of these functions: their results
have no graph. `herring.torch.functional` has functions with a gradient. A tensor that is written in
place counts as modified, so autograd raises an error if it still needs the old values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import herring
from herring.arrays.arguments import Timeout, rank_of
from herring.arrays.calls import CallOptions, called, named
from herring.arrays.collectives import checked_splits, exchange
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import broadcast_plain
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.operators import Operator, name_of
from herring.torch.ranges import shown, work_range
from herring.torch.tensors import check_not_capturing, dtype_name, on_host, require_dense, warn_once


class Handle:
    """An all-reduce under way."""

    def __init__(
        self, inner: Any, tensor: torch.Tensor, staged: torch.Tensor | None, name: str
    ) -> None:
        self._inner = inner
        self._name = name
        self._tensor = tensor
        self._staged = staged

    def done(self) -> bool:
        """Returns whether `wait` would return or raise at once."""
        return self._inner.done()

    def wait(self, timeout: Timeout = None) -> torch.Tensor:
        """Waits for the result and returns the tensor given to `allreduce_async`.

        Args:
          timeout: Seconds to wait here, or a text such as "5s". None means to wait until the
            operation's deadline.

        Returns:
          The tensor.

        Raises:
          TimeoutError: The deadline has passed; the message names the missing ranks.
          HerringError: The operation failed.
        """
        with work_range("wait", self._name):
            return self._finish(timeout)

    def _finish(self, timeout: Timeout) -> torch.Tensor:
        if self._staged is not None:
            check_not_capturing([self._tensor], "wait()")
        self._inner.wait(timeout)
        if self._staged is not None:
            self._tensor.detach().copy_(self._staged)
            self._staged = None
        return self._tensor


def allreduce(
    tensor: torch.Tensor,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, in place.

    Args:
      tensor: Any shape; float16, bfloat16, float32, float64 and, except for "average", int8, int16,
        int32, int64, uint8 and bool.
      algorithm: "herring", "server", "tree", "ring", "butterfly", "doubling" or "cuda-butterfly";
        see `herring.allreduce`.

    Returns:
      `tensor`.

    Raises:
      InvalidArgumentError: The tensor is not contiguous or is sparse, the dtype or `op` is not
        supported, or this rank is not in the group.
    """
    scales = {"prescale": prescale, "postscale": postscale}
    name = named(name, "allreduce", group)
    with work_range("allreduce", name):
        handle = _start(tensor, op, name, group, timeout=timeout, algorithm=algorithm, **scales)
        return handle._finish(None)


def allreduce_async(
    tensor: torch.Tensor,
    op: Operator = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: Timeout = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> Handle:
    """Starts an all-reduce in place and returns at once.

    Args:
      tensor: Any shape; float16, bfloat16, float32, float64 and, except for "average", int8, int16,
        int32, int64, uint8 and bool. Leave it alone until `Handle.wait` has returned.

    Returns:
      A handle, whose `Handle.wait` returns `tensor`.

    Raises:
      InvalidArgumentError: The tensor is not contiguous or is sparse, the dtype or `op` is not
        supported, or this rank is not in the group.
    """
    scales = {"prescale": prescale, "postscale": postscale}
    name = named(name, "allreduce", group)
    with work_range("allreduce_async", name):
        return _start(tensor, op, name, group, timeout=timeout, algorithm=algorithm, **scales)


def _start(
    tensor: torch.Tensor, op: Operator, name: str, group: Group | None, **options: Any
) -> Handle:
    with called("allreduce", name, group):
        dense = _target(tensor, "allreduce")
        taken, host = devices.taken(dense, "allreduce")
    inner = herring.allreduce_async(taken, name_of(op), name=name, group=group, **options)
    return Handle(inner, tensor, host, name)


@shown("broadcast")
def broadcast(
    tensor: torch.Tensor,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: Timeout = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Gives all ranks the tensor of rank `root`, in place; also named `broadcast_`.

    Args:
      tensor: Equal shape and dtype on every rank.

    Returns:
      `tensor`.
    """
    with called("broadcast", name, group) as name:
        dense = _target(tensor, "broadcast")
        taken, host = devices.taken(dense, "broadcast")
    herring.broadcast(taken, root, name=name, timeout=timeout, group=group)
    if host is not None:
        dense.copy_(host)
    return tensor


broadcast_ = broadcast


@shown("allgather")
def allgather(
    tensor: torch.Tensor, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks. A scalar counts as [1].

    Returns:
      A new tensor [sum of n, ...] on the device of `tensor`.
    """
    with called("allgather", name, group) as name:
        dense = _at_least_1d(require_dense(tensor, "allgather"))
        words, dtype = _words(on_host(dense, "allgather"))
    return _tensor(herring.allgather(words, name=name, group=group), dtype, tensor.device)


@shown("reduce")
def reduce(
    tensor: torch.Tensor,
    op: Operator = "average",
    root: int = 0,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor | None:
    """Reduces over all ranks and leaves the result on one of them.

    Args:
      tensor: [n, ...], equal shape and dtype on every rank. Not changed.
      root: The rank that gets the result; with `group`, a rank inside it.

    Returns:
      On `root` a new tensor on the device of `tensor`; None on the other ranks.
    """
    name = named(name, "reduce", group)
    with called("reduce_scatter", name, group):
        dense = require_dense(tensor, "reduce")
        host = on_host(_at_least_1d(dense), "reduce")
    found = herring.reduce(host, name_of(op), root, name=name, group=group)
    if found is None:
        return None
    return _tensor(found, dense.dtype, tensor.device).view(tensor.shape)


@shown("gather")
def gather(
    tensor: torch.Tensor, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor | None:
    """Concatenates the tensors of all ranks along dimension 0 on one rank.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      root: The rank that gets the result; with `group`, a rank inside it.

    Returns:
      On `root` a new tensor in rank order, on the device of `tensor`; None on the other ranks.
    """
    name = named(name, "gather", group)
    with called("alltoall", name, group):
        dense = _at_least_1d(require_dense(tensor, "gather"))
        words, dtype = _words(on_host(dense, "gather"))
    found = herring.gather(words, root, name=name, group=group)
    return None if found is None else _tensor(found, dtype, tensor.device)


@shown("scatter")
def scatter(
    tensor: torch.Tensor | None = None,
    root: int = 0,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Hands each rank one part of the root's tensor, cut along dimension 0.

    Args:
      tensor: [n, ...]; read on `root` only, and not changed. On other ranks any tensor, whose
        device is used for the result, or None.
      root: The rank whose tensor is handed out (with `group`, inside it); equal on all ranks.
      splits: The number of rows for each rank, in rank order; read on `root` only. None cuts n into
        equal parts.

    Returns:
      A new tensor with this rank's rows, on the device of `tensor`, or on the CPU without one.

    Raises:
      InvalidArgumentError: The root's tensor or `splits` does not fit, or `root` is not a rank.
      MismatchError: `root` differs between ranks.
    """
    name = named(name, "scatter", group)
    scope = scope_of(group)
    about, words, rows = None, torch.empty(0, device="cpu"), [0] * scope.size
    # The other ranks pass no rows, so they learn from the root what to expect.
    with called("broadcast", f"{name}.shape.length", group):
        sends = rank_of(root, scope.size, "scatter", group) == scope.rank
        if sends:
            dense = require_dense(tensor, "scatter")
            if dense.dim() == 0:
                raise InvalidArgumentError("scatter needs a tensor with at least one dimension")
            rows = checked_splits("scatter", len(dense), splits, group)
            words, dtype = _words(on_host(dense, "scatter"))
            about = dtype_name(dtype), tuple(dense.shape[1:])
    kind, tail = broadcast_plain(about, root, name=f"{name}.shape", group=group)
    dtype = getattr(torch, kind)
    if not sends:
        words, _ = _words(torch.empty((0, *tail), dtype=dtype, device="cpu"))
    found = exchange(words, rows, CallOptions(name, group=group), f"scatter from rank {root}")
    device = tensor.device if isinstance(tensor, torch.Tensor) else torch.device("cpu")
    return _tensor(found, dtype, device)


@shown("reduce_scatter")
def reduce_scatter(
    tensor: torch.Tensor,
    op: Operator = "average",
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces over all ranks and gives each rank its block along dimension 0.

    Args:
      tensor: [n, ...], equal shape and dtype on every rank; rank r gets the r-th block.
      splits: The number of rows for each rank, which sum to n; None makes nearly equal blocks.

    Returns:
      A new tensor on the device of `tensor`.
    """
    with called("reduce_scatter", name, group) as name:
        dense = _at_least_1d(require_dense(tensor, "reduce_scatter"))
        host = on_host(dense, "reduce_scatter")
    result = herring.reduce_scatter(host, name_of(op), splits, name=name, group=group)
    return _tensor(result, dense.dtype, tensor.device)


@shown("alltoall")
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
      splits: The number of rows for each rank, which sum to n; None cuts n into equal parts.

    Returns:
      A new tensor on the device of `tensor` with the blocks for this rank, in rank order.

    Raises:
      InvalidArgumentError: The splits do not fit the tensor, or the tensor cannot be used.
    """
    with called("alltoall", name, group) as name:
        dense = _at_least_1d(require_dense(tensor, "alltoall"))
        words, dtype = _words(on_host(dense, "alltoall"))
    received = herring.alltoall(words, splits, name=name, group=group)
    return _tensor(received, dtype, tensor.device)


def _target(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    dense = require_dense(tensor, operation)
    if tensor.grad_fn is not None and torch.is_grad_enabled():
        warn_once(
            "graph",
            f"herring.torch: {operation} writes into a tensor that has an autograd graph, which "
            "does not see the write: gradients flow as if the values had not changed. Use "
            f"herring.torch.functional.{operation} for gradients through it, or tensor.detach()",
        )
    return dense


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(1) if tensor.dim() == 0 else tensor


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    # NumPy has no bfloat16; operations that only move data can move its bits.
    words = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return words, tensor.dtype


def _tensor(array: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if isinstance(array, torch.Tensor):
        result = array
    elif isinstance(array, np.ndarray) and dtype != torch.bfloat16:
        result = torch.from_numpy(array)
    elif isinstance(array, np.ndarray):
        result = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        result = torch.from_dlpack(array)
    if result.dtype != dtype:
        raise InvalidArgumentError(f"expected a result of {dtype}, got {result.dtype}")
    return result.to(device)
