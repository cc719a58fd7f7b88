"""The sum of sparse tensors: the embedding gradients of DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from herring.errors import InvalidArgumentError
from herring.torch.backend.reductions import movable, typed
from herring.torch.backend.tensors import as_dense

__all__ = ["SparseSum"]


class SparseSum:
    """A sum over ranks of COO tensors, which may have different entries: they are gathered.

    Args:
      tensor: sparse COO; the same shape on all ranks.
      op: SUM or AVG of torch.
      ranks: how many take part.

    Raises:
      InvalidArgumentError: another operator.
    """

    def __init__(self, tensor: torch.Tensor, op: Any, ranks: int) -> None:
        kind = getattr(op, "op", op)
        if kind not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise InvalidArgumentError(f"sparse tensors have SUM and AVG, not {op}")
        self._tensor = tensor
        self._divisor = ranks if kind == dist.ReduceOp.AVG else 1
        own = tensor.detach().coalesce()
        self._dimensions = own.sparse_dim()
        # [entries, sparse dimensions], so that those of all ranks follow each other.
        self.indices = as_dense(own.indices().t(), "all_reduce of sparse tensors").reshape(-1)
        self.values = movable(as_dense(own.values(), "all_reduce of sparse tensors"))
        average = "average" if self._divisor > 1 else "sum"
        self.about = f"{average} of sparse {tensor.dtype} {list(tensor.shape)}"

    def finish(self, operations: Sequence[Any]) -> None:
        """Sums what all have sent, in rank order, into the tensor."""
        tensor = self._tensor
        found, entries = (data for _, _, data in operations[0].results())
        indices = typed(found, torch.int64).view(-1, self._dimensions).t()
        values = typed(entries, tensor.dtype)
        values = values.view(-1, *tensor.shape[self._dimensions :])
        total = torch.sparse_coo_tensor(indices, values, tensor.shape).coalesce()
        if self._divisor > 1:
            total = total / self._divisor
        with torch.no_grad():  # not through detach(), whose entries are others from then on
            tensor.copy_(total.to(tensor.device))
