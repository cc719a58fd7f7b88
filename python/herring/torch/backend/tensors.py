"""Handles tensors and options in the form in which torch passes them to a process group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.tensors import on_host

_SMALL = 1 << 18  # a tensor of a list with at most so many bytes is packed with others


def list_of(tensors: Any) -> list[torch.Tensor]:
    """Returns the tensors of a list, or a list of the one tensor given in its place."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def first_tensor(values: Iterable[Any]) -> torch.Tensor | None:
    """Returns the first tensor in values, or in nested lists; None if there is none."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        if isinstance(value, (list, tuple)):
            found = first_tensor(value)
            if found is not None:
                return found
    return None


def option(options: Any, name: str, default: Any) -> Any:
    """Returns an option of a collective; different versions of torch have different options."""
    return getattr(options, name, default)


def operator_of(options: Any) -> Any:
    """Returns the operator in options, or the operator given in their place; None means SUM."""
    if options is None:
        return dist.ReduceOp.SUM
    return getattr(options, "reduceOp", options)


def limit_of(given: timedelta | None, default: timedelta) -> float:
    """Returns a timeout in seconds; the default replaces None and values that are not positive."""
    if given is not None and given.total_seconds() > 0:
        return given.total_seconds()
    return max(default.total_seconds(), 1e-3)


def as_dense(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Returns the values of a tensor in contiguous host memory, its own or a copy's.

    Autograd does not see changes, as with every backend of torch.

    Args:
      operation: what it is for; the warning about a copy from a GPU names it.

    Raises:
      InvalidArgumentError: The tensor is sparse, or is on a device whose tensors cannot be copied
        to the host.
    """
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(
            f"the tensor has the layout {tensor.layout}; only all_reduce takes sparse tensors (COO)"
        )
    return on_host(tensor.data.resolve_conj().resolve_neg(), operation).contiguous()


def exchanges_lists(tensor: torch.Tensor) -> bool:
    """Returns whether ranks gather and scatter a tensor as a list of one.

    The core takes such lists from GPUs. All ranks get the same answer, even if the core takes
    tensors from the GPUs of some of them only.
    """
    return tensor.is_cuda or devices.gpu_of(tensor) is not None


def dense_there(tensor: torch.Tensor, operation: str) -> torch.Tensor:
    """Returns a tensor's values contiguous, on its GPU if the core takes tensors from there.

    Otherwise the values come in host memory, the tensor's own or a copy's.
    """
    if tensor.layout != torch.strided or devices.gpu_of(tensor) is None:
        return as_dense(tensor, operation)
    return tensor.data.resolve_conj().resolve_neg().contiguous()


def stays(tensor: torch.Tensor) -> bool:
    """Returns whether the core takes a GPU tensor where it is."""
    return (
        tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and devices.gpu_of(tensor) is not None
    )


def copy_back(tensor: torch.Tensor, found: torch.Tensor) -> None:
    """Writes values, in order, to a tensor of any strides and device."""
    target = tensor.data
    if found.data_ptr() != target.data_ptr() or not target.is_contiguous():
        target.copy_(found.view(target.shape))


class Blocks:
    """One block per rank, in the order in which the core numbers the ranks."""

    def __init__(self, places: Sequence[int]) -> None:
        self.order = sorted(range(len(places)), key=places.__getitem__)  # ranks, by place
        self._places = list(places)
        self.same = self.order == self._places

    def joined(
        self, blocks: Sequence[torch.Tensor], operation: str
    ) -> tuple[torch.Tensor, list[int]]:
        """Returns the blocks one after the other, flat, and the number of elements of each."""
        parts = [as_dense(blocks[rank], operation).reshape(-1) for rank in self.order]
        return torch.cat(parts), [part.numel() for part in parts]

    def equal(self, flat: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        """Reorders a flat tensor of blocks of equal size; returns it and the blocks' sizes."""
        count = flat.numel() // len(self.order)
        if not self.same:
            flat = flat.view(len(self.order), count)[self.order].reshape(-1)
        return flat, [count] * len(self.order)

    def sorted(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns blocks of equal size in the order of ranks again."""
        if self.same:
            return flat
        return flat.view(len(self.order), -1)[self._places].reshape(-1)


def packs(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Groups tensors: large and sparse ones alone, small dense ones by dtype."""
    found: list[list[torch.Tensor]] = []
    small: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.numel() * tensor.element_size() > _SMALL:
            found.append([tensor])
        elif tensor.dtype in small:
            small[tensor.dtype].append(tensor)
        else:
            small[tensor.dtype] = [tensor]
            found.append(small[tensor.dtype])
    return found
