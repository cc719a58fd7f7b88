"""Averages sparse gradients: every rank hands its rows to all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

import herring
from herring.arrays.groups import Group
from herring.torch.functions import allgather

_ABSENT, _NONE, _SPARSE, _DENSE = range(4)


def average_sparse(
    parameters: Sequence[torch.nn.Parameter],
    *,
    active: bool,
    name: str,
    group: Group | None = None,
    divide_by_all: bool = False,
) -> list[torch.Tensor | None]:
    """Returns the averages of the gradients of `parameters` over all ranks (collective).

    Args:
      parameters: Parameters of shape [rows, ...], whose `.grad` may be sparse, dense or None.
      active: False means that this rank has no more data, and contributes nothing.
      divide_by_all: Whether averages divide by the number of all ranks, not of the active ones.

    Returns:
      One entry per parameter: a coalesced sparse tensor with one sparse dimension and the rows that
      any rank had. The entry is dense if some rank's gradient was dense, and None if all were None.
    """
    gradients = [parameter.grad if active else None for parameter in parameters]
    kinds = [_kind(gradient) if active else _ABSENT for gradient in gradients]
    everyone = herring.allgather(np.array([kinds], np.int32), name=f"{name}.kinds", group=group)
    divisor = len(everyone) if divide_by_all else int((everyone[:, 0] != _ABSENT).sum())
    averages: list[torch.Tensor | None] = []
    for index, (parameter, gradient) in enumerate(zip(parameters, gradients)):
        if (everyone[:, index] <= _NONE).all():
            averages.append(None)
            continue
        rows, values = _rows(parameter, gradient)
        rows = allgather(rows, name=f"{name}.{index}.rows", group=group)
        values = allgather(values, name=f"{name}.{index}.values", group=group)
        # Duplicate rows are added in rank order, so every rank gets the same bits.
        total = torch.sparse_coo_tensor(
            rows.view(1, -1), values, parameter.shape, check_invariants=False
        ).coalesce()
        total.values().div_(divisor)
        average = total.to_dense() if (everyone[:, index] == _DENSE).any() else total
        averages.append(average.to(parameter.device))
    return averages


def _kind(gradient: torch.Tensor | None) -> int:
    if gradient is None:
        return _NONE
    return _DENSE if gradient.layout == torch.strided else _SPARSE


def _rows(
    parameter: torch.nn.Parameter, gradient: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the row numbers of a gradient, [n], and their values, [n, ...], in host memory."""
    if gradient is None:
        shape = (0, *parameter.shape[1:])
        rows = torch.empty(0, dtype=torch.int64, device="cpu")
        return rows, torch.empty(shape, dtype=parameter.dtype, device="cpu")
    gradient = gradient.detach()
    if gradient.layout == torch.strided:
        gradient = gradient.to_sparse(1)
    elif gradient.sparse_dim() != 1:
        gradient = gradient.to_dense().to_sparse(1)
    gradient = gradient.coalesce().cpu()
    return gradient.indices().view(-1).contiguous(), gradient.values().contiguous()
