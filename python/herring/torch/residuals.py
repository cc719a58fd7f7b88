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
from herring.arrays.groups import scope_of
from herring.errors import InvalidArgumentError
from herring.torch.functions import allreduce
from herring.torch.layout import Layout
from herring.torch.reducer import GradientReducer


def _mean(layout: Layout, name: str) -> dict[str, torch.Tensor]:
    """Returns the mean of all ranks' residuals, by the names of the parameters (collective)."""
    own = layout.residuals()
    if not own:
        return {}
    flat = torch.cat([values.reshape(-1) for values in own.values()])
    if scope_of(layout.options.group).size > 1:
        flat = allreduce(flat, op="average", name=name, group=layout.options.group)
    parts = flat.split([values.numel() for values in own.values()])
    return {
        layout.names[index]: part.reshape(own[index].shape).clone()
        for index, part in zip(own, parts)
    }


def _give(layout: Layout, residuals: Mapping[str, torch.Tensor]) -> None:
    """Replaces the residuals of all ranks by what `_mean` has returned, on each rank."""
    known = {name: index for index, name in enumerate(layout.names)}
    for name, values in residuals.items():
        expected = layout.parameters[known[name]].shape if name in known else None
        if not isinstance(values, torch.Tensor) or values.shape != expected:
            raise InvalidArgumentError(
                f"load_residuals: {name!r} is "
                + (
                    "no parameter that is averaged"
                    if expected is None
                    else f"{shown(values)}; it must be a tensor of shape {tuple(expected)}"
                )
            )
    workers = layout.plan.local_size
    layout.give_residuals(
        {
            known[name]: values.to("cpu", torch.float32) * workers
            for name, values in residuals.items()
        }
    )


class KeepsResiduals:
    """What a wrapper of gradients that travel in 8 bits offers to checkpoints."""

    def _rounding(self) -> GradientReducer | None:
        return getattr(self, "_reducer", None)

    def residuals(self) -> dict[str, torch.Tensor]:
        """Returns what rounding to 8 bits has lost and is still to be sent (collective).

        Save it with the model and the optimizer, and give it to `load_residuals` after a restart.
        Without it, a restart loses what one step's rounding has lost.

        Returns:
          For each parameter that is averaged, the mean over all ranks: a float32 tensor of the
          parameter's shape in host memory, the same on all ranks. It fits any number of ranks.
          Empty if nothing travels in 8 bits.

        Raises:
          InvalidArgumentError: A step is not complete.
        """
        if (reducer := self._rounding()) is None:
            return {}
        layout = reducer.resting_layout("residuals()")
        return {} if layout is None else _mean(layout, f"{reducer.name}.residuals")

    def load_residuals(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continues with what `residuals` has returned.

        Args:
          state: The same on all ranks. Parameters that are not in it begin with 0.

        Raises:
          InvalidArgumentError: A step is not complete, or a name or a shape is wrong; nothing has
            changed then.
        """
        if (reducer := self._rounding()) is not None:
            layout = reducer.resting_layout("load_residuals()")
            if layout is not None:
                _give(layout, state)
