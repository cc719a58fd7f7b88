"""The collectives of `herring` on torch tensors.

Every operation in place writes its result into the tensor's own memory and returns the tensor. An
operation that fails leaves the tensor's values undefined. Tensors must be dense and contiguous.
CPU tensors are used where they lie; so are CUDA tensors by `allreduce` and `broadcast`, for which
the GPU makes its copies in streams of their own. Others stage CUDA tensors through pinned host
memory, with one warning. None of these functions is seen by autograd: results carry no graph; for
those with a gradient see `herring.torch.functional`. What is written in place counts as modified,
so that autograd complains if it still needs the values before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import herring
from herring.arrays.arguments import rank_of
from herring.arrays.calls import called, named
from herring.arrays.collectives import broadcast_object, checked_splits, exchange
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.tensors import dtype_name, on_host, require_dense, warn_once


class Handle:
    """An all-reduce under way."""

    def __init__(self, inner: Any, tensor: torch.Tensor, staged: torch.Tensor | None) -> None:
        self._inner = inner
        self._tensor = tensor
        self._staged = staged

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._inner.done()

    def wait(self, timeout: float | None = None) -> torch.Tensor:
        """Waits for the result and returns the tensor given to `allreduce_async`.

        Args:
          timeout: seconds; None is the default deadline of the job.

        Raises:
          TimeoutError: the deadline has passed; the message names who is missing.
          HerringError: the operation failed.
        """
        self._inner.wait(timeout)
        if self._staged is not None:
            self._tensor.detach().copy_(self._staged)
            self._staged = None
        return self._tensor


def allreduce(
    tensor: torch.Tensor,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces a tensor over all ranks, in place.

    Args:
      tensor: any shape; float16, bfloat16, float32, float64, and, but for "average", int8, int16,
        int32, int64, uint8 and bool.
      op: "average", "sum", "min", "max" or "product".
      name: identifies the operation across ranks; None numbers the calls.
      prescale: factor applied to this rank's contribution.
      postscale: factor applied to the result.
      timeout: seconds; None is the default deadline of the job.
      algorithm: "herring", "server", "tree", "ring", "butterfly" or "cuda-butterfly"; see
        `herring.allreduce`.
      group: those who take part, from `herring.new_group`; None: all ranks.

    Returns:
      `tensor`.

    Raises:
      InvalidArgumentError: not contiguous, sparse, or a dtype or op that is not supported; this
        rank is not in the group.
      MismatchError: shape, dtype or op differ between ranks.
      PeerLostError, TimeoutError: a rank is gone, or has not called in time.
    """
    return allreduce_async(
        tensor,
        op,
        name=name,
        prescale=prescale,
        postscale=postscale,
        timeout=timeout,
        algorithm=algorithm,
        group=group,
    ).wait()


def allreduce_async(
    tensor: torch.Tensor,
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    algorithm: str = "herring",
    group: Group | None = None,
) -> Handle:
    """Starts an all-reduce in place. Leave the tensor alone until `Handle.wait` has returned.

    Args and errors as in `allreduce`.
    """
    with called("allreduce", name, group) as name:
        dense = _target(tensor, "allreduce")
        taken, host = devices.taken(dense, "allreduce")
    inner = herring.allreduce_async(
        taken,
        op,
        name=name,
        prescale=prescale,
        postscale=postscale,
        timeout=timeout,
        algorithm=algorithm,
        group=group,
    )
    return Handle(inner, tensor, host)


def broadcast(
    tensor: torch.Tensor,
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Gives all ranks the tensor of rank `root`, in place (like `broadcast_`, a second name).

    Args:
      tensor: same shape and dtype on every rank.
      root: the rank whose values all get, inside the group if there is one.
      name: identifies the operation across ranks; None numbers the calls.
      timeout: seconds; None is the default deadline of the job.
      group: as in `allreduce`.

    Returns:
      `tensor`.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as in `allreduce`.
    """
    with called("broadcast", name, group) as name:
        dense = _target(tensor, "broadcast")
        taken, host = devices.taken(dense, "broadcast")
    herring.broadcast(taken, root, name=name, timeout=timeout, group=group)
    if host is not None:
        dense.copy_(host)
    return tensor


broadcast_ = broadcast


def allgather(
    tensor: torch.Tensor, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor:
    """Concatenates the tensors of all ranks along dimension 0, in rank order.

    Args:
      tensor: [n, ...]; n may differ between ranks. A scalar counts as [1].
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      A new tensor [sum of n, ...] on the device of `tensor`.
    """
    with called("allgather", name, group) as name:
        dense = _at_least_1d(require_dense(tensor, "allgather"))
        words, dtype = _words(on_host(dense, "allgather"))
    return _tensor(herring.allgather(words, name=name, group=group), dtype, tensor.device)


def reduce(
    tensor: torch.Tensor,
    op: str = "average",
    root: int = 0,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor | None:
    """Reduces over all ranks and leaves the result with one of them.

    Args:
      tensor: [n, ...], alike on every rank. Not changed.
      op: as in `allreduce`.
      root: the rank that gets the result, inside the group if there is one.
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      On `root` a new tensor on the device of `tensor`, on the others None.
    """
    name = named(name, "reduce", group)
    with called("reduce_scatter", name, group):
        dense = require_dense(tensor, "reduce")
        host = on_host(_at_least_1d(dense), "reduce")
    found = herring.reduce(host, op, root, name=name, group=group)
    if found is None:
        return None
    return _tensor(found, dense.dtype, tensor.device).view(tensor.shape)


def gather(
    tensor: torch.Tensor, root: int = 0, *, name: str | None = None, group: Group | None = None
) -> torch.Tensor | None:
    """Concatenates the tensors of all ranks along dimension 0 on one of them.

    Args:
      tensor: [n, ...]; n may differ between ranks.
      root: the rank that gets them, inside the group if there is one.
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      On `root` a new tensor on the device of `tensor`, in rank order; on the others None.
    """
    name = named(name, "gather", group)
    with called("alltoall", name, group):
        dense = _at_least_1d(require_dense(tensor, "gather"))
        words, dtype = _words(on_host(dense, "gather"))
    found = herring.gather(words, root, name=name, group=group)
    return None if found is None else _tensor(found, dtype, tensor.device)


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
      tensor: [n, ...]; read on `root` only, where it is not changed. Others may give any, for its
        device, or none.
      root: the rank whose tensor it is, inside the group if there is one; equal on all ranks.
      splits: rows for each rank, in rank order, read on `root` only; None cuts n into equal parts.
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      A new tensor with this rank's rows, on the device of `tensor`; without one on the CPU.

    Raises:
      InvalidArgumentError: the root's tensor or `splits` do not fit; otherwise as in `allreduce`.
    """
    name = named(name, "scatter", group)
    scope = scope_of(group)
    about, words, rows = None, torch.empty(0), [0] * scope.size
    # What the others are to expect, for they give nothing from which it could be seen.
    with called("broadcast", f"{name}.shape.length", group):
        sends = rank_of(root, scope.size, "scatter", group) == scope.rank
        if sends:
            dense = require_dense(tensor, "scatter")
            if dense.dim() == 0:
                raise InvalidArgumentError("scatter needs a tensor with at least one dimension")
            rows = checked_splits("scatter", len(dense), splits, group)
            words, dtype = _words(on_host(dense, "scatter"))
            about = dtype_name(dtype), tuple(dense.shape[1:])
    kind, tail = broadcast_object(about, root, name=f"{name}.shape", group=group)
    dtype = getattr(torch, kind)
    if not sends:
        words, _ = _words(torch.empty((0, *tail), dtype=dtype))
    found = exchange(words, rows, name, None, group, f"scatter from rank {root}")
    device = tensor.device if isinstance(tensor, torch.Tensor) else torch.device("cpu")
    return _tensor(found, dtype, device)


def reduce_scatter(
    tensor: torch.Tensor,
    op: str = "average",
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Reduces over all ranks and gives each rank its block along dimension 0.

    Args:
      tensor: [n, ...], alike on every rank; rank r gets the r-th block.
      op: as in `allreduce`.
      splits: rows for each rank, numbers that add up to n; None: nearly equal blocks.
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      A new tensor on the device of `tensor`.
    """
    with called("reduce_scatter", name, group) as name:
        dense = _at_least_1d(require_dense(tensor, "reduce_scatter"))
        host = on_host(dense, "reduce_scatter")
    result = herring.reduce_scatter(host, op, splits, name=name, group=group)
    return _tensor(result, dense.dtype, tensor.device)


def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    group: Group | None = None,
) -> torch.Tensor:
    """Sends the r-th block of this rank's tensor to rank r, and concatenates what comes in.

    Args:
      tensor: [n, ...].
      splits: rows for each rank, numbers that add up to n; None cuts n into equal parts.
      name: as in `allreduce`.
      group: as in `allreduce`.

    Returns:
      A new tensor on the device of `tensor`: the blocks for this rank, in rank order.

    Raises:
      InvalidArgumentError: the splits do not fit the tensor.
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
            f"herring.torch: {operation} writes into a tensor that has an autograd graph, and the "
            "graph does not learn of it: gradients pass as if nothing had happened. Use "
            f"herring.torch.functional.{operation} for gradients through it, or tensor.detach()",
        )
    return dense


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(1) if tensor.dim() == 0 else tensor


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
    # numpy knows no bfloat16, and operations that only move data need not know it either.
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
