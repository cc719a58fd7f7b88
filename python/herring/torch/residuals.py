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
from herring.torch.reducer import GradientReducer


def mean_residuals(
    own: Mapping[str, torch.Tensor], name: str, group: Group | None
) -> dict[str, torch.Tensor]:
    """Returns the mean of all ranks' residuals (collective).

    Args:
      own: What rounding has lost on this rank, by the names of the parameters.
    """
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
        if layout is None:
            return {}
        own = {layout.names[index]: values for index, values in layout.residuals().items()}
        return mean_residuals(own, f"{reducer.name}.residuals", layout.options.group)

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
                shapes = {n: p.shape for n, p in zip(layout.names, layout.parameters)}
                checked = checked_residuals(state, shapes, layout.plan.local_size)
                known = {name: index for index, name in enumerate(layout.names)}
                layout.give_residuals({known[name]: values for name, values in checked.items()})
