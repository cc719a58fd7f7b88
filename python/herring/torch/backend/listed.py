"""Gathers and scatters of tensors on GPUs: as lists of one, which the core takes where they lie."""

from __future__ import annotations

from typing import Any

import torch

from herring.arrays.devices import return_to
from herring.torch import devices
from herring.torch.backend.reductions import typed

_TABLE = 8  # bytes before what a rank gathers: how many rows each of its arrays has


def given(flat: torch.Tensor) -> list[Any]:
    """Returns what the core takes for the one tensor of a list."""
    return [flat if devices.gpu_of(flat) is None else devices.exported(flat)]


def gathered_bytes(operation: Any) -> list[int]:
    """Returns how many bytes each rank has gathered, by the core's number of the rank."""
    return [int(count) - _TABLE for count in operation.counts]


def result_of(
    operation: Any, flat: torch.Tensor, elements: int, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the result of a complete operation on the list of `flat`.

    Args:
      into: a contiguous tensor for the result, with the dtype and device of `flat`; None: a new
        tensor is made.

    Returns:
      A flat tensor of the dtype of `flat`: on its GPU if the core takes tensors from there, for the
      current stream; else in host memory.
    """
    if devices.gpu_of(flat) is None:
        _, _, data = operation.results()[0]
        return typed(data, flat.dtype)
    found = flat.new_empty(elements) if into is None else into
    return_to(operation, [devices.exported(found)])
    return found
