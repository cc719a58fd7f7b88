"""Sums sparse tensors, such as the embedding gradients of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from herring.errors import InvalidArgumentError
from herring.torch.backend.reductions import movable, typed
from herring.torch.backend.tensors import as_dense


class SparseSum:
    """A sum over ranks of COO tensors; entries may differ between ranks, so they are gathered."""

    def __init__(self, tensor: torch.Tensor, op: Any, ranks: int) -> None:
        kind = getattr(op, "op", op)
        if kind not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise InvalidArgumentError(f"sparse tensors take SUM and AVG, not {op}")
        self._tensor = tensor
        self._divisor = ranks if kind == dist.ReduceOp.AVG else 1
        own = tensor.detach().coalesce()
        self._dimensions = own.sparse_dim()
        # The shape is [entries, sparse dimensions], so that the ranks' entries can be concatenated.
        self.indices = as_dense(own.indices().t(), "all_reduce of sparse tensors").reshape(-1)
        self.values = movable(as_dense(own.values(), "all_reduce of sparse tensors"))
        average = "average" if self._divisor > 1 else "sum"
        self.about = f"{average} of sparse {tensor.dtype} {list(tensor.shape)}"

    def finish(self, operations: Sequence[Any]) -> None:
        """Sums the entries of all ranks into the tensor, in rank order."""
        tensor = self._tensor
        found, entries = (data for _, _, data in operations[0].results())
        indices = typed(found, torch.int64).view(-1, self._dimensions).t()
        values = typed(entries, tensor.dtype)
        values = values.view(-1, *tensor.shape[self._dimensions :])
        total = torch.sparse_coo_tensor(indices, values, tensor.shape).coalesce()
        if self._divisor > 1:
            total = total / self._divisor
        with torch.no_grad():  # a detached alias would get entries of its own
            tensor.copy_(total.to(tensor.device))
