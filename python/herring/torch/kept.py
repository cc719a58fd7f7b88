"""What rounding gradients to 8 bits has lost, and how a checkpoint keeps it.

With an 8-bit `wire_dtype`, each node adds what rounding has lost to its next sums (error feedback;
Seide et al. 2014, Karimireddy et al. 2019). That is a float32 for each element of a gradient, and
ranks of a node hold it for disjoint parts. Only its mean over all ranks influences training, so a
checkpoint has the mean, which fits any number of ranks and nodes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from herring.arrays.arguments import shown
from herring.arrays.groups import Group, scope_of
from herring.errors import InvalidArgumentError
from herring.torch.functions import allreduce


def mean_residuals(
    own: Mapping[str, torch.Tensor], name: str, group: Group | None
) -> dict[str, torch.Tensor]:
    """Returns the mean of all ranks' residuals, by the parameters' names (collective)."""
    if not own:
        return {}
    flat = torch.cat([values.reshape(-1) for values in own.values()])
    if scope_of(group).size > 1:
        flat = allreduce(flat, op="average", name=name, group=group)
    parts = flat.split([values.numel() for values in own.values()])
    return {key: part.reshape(own[key].shape).clone() for key, part in zip(own, parts)}


def checked_residuals(
    residuals: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], workers: int
) -> dict[str, torch.Tensor]:
    """Returns what a rank takes over from what `mean_residuals` has returned.

    Args:
      residuals: The same on all ranks.
      shapes: The shapes of the parameters that are averaged.
      workers: The number of ranks on this node, which hold its residuals together.
    """
    for name, values in residuals.items():
        expected = shapes.get(name)
        if not isinstance(values, torch.Tensor) or values.shape != expected:
            raise InvalidArgumentError(
                f"load_residuals: {name!r} is "
                + (
                    "no parameter that is averaged"
                    if expected is None
                    else f"{shown(values)}; it must be a tensor of shape {tuple(expected)}"
                )
            )
    return {name: values.to("cpu", torch.float32) * workers for name, values in residuals.items()}
