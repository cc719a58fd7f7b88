"""The calls of a wrapper with which a checkpoint keeps what rounding to 8 bits has lost."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from herring.torch.kept import checked_residuals, mean_residuals
from herring.torch.reducer import GradientReducer


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
