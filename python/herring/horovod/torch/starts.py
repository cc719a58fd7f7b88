"""Starts collectives on PyTorch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from herring.arrays.grouped import results_of
from herring.errors import InvalidArgumentError
from herring.horovod.common import starter
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import Average, Sum, operator_of
from herring.horovod.common.tensors import Tensors
from herring.torch import devices
from herring.torch.tensors import dtype_name, on_host


class _Tensors(Tensors):
    """Handles PyTorch tensors; operations use a tensor's own memory if it is contiguous."""

    def checked(self, tensor: Any, kind: str) -> torch.Tensor:
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"{kind}: expected a torch.Tensor, got {type(tensor).__name__}"
            )
        if tensor.layout != torch.strided:
            raise InvalidArgumentError(
                f"{kind}: the tensor is sparse ({tensor.layout}); use sparse_allreduce_async, or "
                "tensor.to_dense()"
            )
        if tensor.is_complex():
            raise InvalidArgumentError(
                f"{kind}: {tensor.dtype} is not supported; use torch.view_as_real(tensor)"
            )
        return tensor.detach()

    def dtype_of(self, dense: torch.Tensor) -> str:
        return dtype_name(dense.dtype)

    def has_floats(self, dense: torch.Tensor, kind: str) -> bool:
        return dense.is_floating_point()

    def stay(self, dense: Sequence[torch.Tensor]) -> bool:
        return devices.common_gpu(dense) is not None

    def staying(self, dense: torch.Tensor, *, own: bool) -> torch.Tensor:
        there = dense.contiguous()
        return there.clone() if own and there.data_ptr() == dense.data_ptr() else there

    def exported(self, there: torch.Tensor) -> Any:
        return devices.exported(there)

    def reducible(self, dense: torch.Tensor, kind: str, *, own: bool) -> torch.Tensor:
        host = on_host(dense.contiguous(), kind)
        return host.clone() if own and host.data_ptr() == dense.data_ptr() else host

    def scaled(self, host: torch.Tensor, factor: float) -> torch.Tensor:
        return host * factor

    def widened(self, dense: torch.Tensor, factor: float) -> torch.Tensor:
        host = dense.to("cpu", torch.float64, copy=True).contiguous()
        return host.mul_(factor).trunc_() if factor != 1.0 else host

    def narrowed(self, found: Any, like: torch.Tensor) -> torch.Tensor:
        found = torch.from_numpy(found) if isinstance(found, np.ndarray) else found
        if found.is_floating_point() and not like.is_floating_point() and like.dtype != torch.bool:
            found = found.trunc().to(torch.int64)
        return found.to(like.dtype)

    def movable(self, dense: torch.Tensor, kind: str, *, own: bool) -> torch.Tensor:
        return self.reducible(dense, kind, own=own)

    def rows(self, dense: torch.Tensor, kind: str) -> torch.Tensor:
        host = self.reducible(dense, kind, own=False)
        return host.view(1) if host.dim() == 0 else host

    def words(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows

    def viewed(self, found: np.ndarray, like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        flat = np.ascontiguousarray(found).reshape(-1).view(np.uint8)
        return torch.from_numpy(flat).view(like.dtype).view(tuple(shape))

    def bytes_of(self, dense: torch.Tensor, kind: str) -> np.ndarray:
        flat = self.reducible(dense, kind, own=False).view(-1)
        found: np.ndarray = flat.view(torch.uint8).numpy()
        return found

    def exact(self, raw: np.ndarray, like: torch.Tensor) -> np.ndarray:
        found = torch.from_numpy(raw).view(like.dtype)
        wide: np.ndarray = (found if found.dtype == torch.float64 else found.float()).numpy()
        return wide

    def new(self, found: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return found.to(like.device)

    def write(self, found: torch.Tensor, tensor: torch.Tensor) -> None:
        dense = tensor.detach()
        if found.data_ptr() != dense.data_ptr():
            dense.copy_(found)

    def counts(self, counts: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(counts)  # On the CPU, as in Horovod.


class Starter(starter.Starter):
    """Starts calls with one name in one process set, on PyTorch tensors."""

    tensors = _Tensors()

    def sparse_allreduce(self, tensor: torch.Tensor, op: int) -> Call:
        """Starts an all-reduce of a sparse COO tensor, which gathers the entries of all ranks.

        The result is a new coalesced tensor.
        """
        kind = "sparse_allreduce"
        with self._call(kind, "allgather") as call:
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
                found = getattr(tensor, "layout", type(tensor).__name__)
                raise InvalidArgumentError(f"{kind}: expected a sparse COO tensor, got {found}")
            if op not in (Average, Sum):
                raise InvalidArgumentError(
                    f"{kind}: op is {op!r}; it must be hvd.Average or hvd.Sum"
                )
            if op == Average and not tensor.is_floating_point():
                raise InvalidArgumentError(f"{kind}: Average is for floats, not {tensor.dtype}")
            whole = tensor.detach().coalesce()
            indices = self.tensors.rows(whole.indices().t(), kind)
            values = self.tensors.rows(whole.values(), kind)
            parts = [self.tensors.words(indices), self.tensors.words(values)]
            about = f"sparse {self._text(whole)}; op {operator_of(op, kind)}"
            operation = call.start(parts, listed=True, about=about)

            def finish() -> torch.Tensor:
                places, every = (
                    self.tensors.viewed(found, like, (len(found), *like.shape[1:]))
                    for found, like in zip(results_of(operation), (indices, values))
                )
                # Entries with the same index are added in rank order: all ranks get the same bits.
                total = torch.sparse_coo_tensor(
                    places.t(), every, whole.shape, check_invariants=False
                ).coalesce()
                if op == Average:
                    total.values().div_(call.scope.size)
                return total.to(tensor.device)

            call.finish = finish
        return call
