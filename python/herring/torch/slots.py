"""The places of gradients in the arenas of a planned reduction, as torch tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from herring.arrays.groups import Group
from herring.torch.tensors import dense_strides, dtype_name

# Behind the usage of each parameter, the pseudo-gradient carries flags of the round.
FLAGS = ("again", "changed", "failed")


class GradientSlots:
    """One planned reduction over the gradients of `parameters`, and a view of each place.

    The last entry of the plan is the pseudo-gradient `usage` (float32, [parameters + 3]): per
    parameter 1 where this rank has a gradient; then the flags: whether a gradient of this rank has
    grown after it was sent; whether this rank has parameters to average that the plan lacks;
    whether its backward pass failed. Averaged like any gradient, it tells every rank, at no extra
    operation, what the others did.

    Attributes:
      order: indices of the parameters that have a place, in the order gradients are produced.
      views: per parameter (in the order given) its place, with the parameter's shape and dtype and
        gap-free strides in the parameter's dimension order; empty where it has none. For use here
        only: what others get is an alias, as `module.to()` and the like point existing gradient
        tensors to other memory.
      usage: float32 [parameters + 3], the place of the pseudo-gradient.
    """

    def __init__(
        self,
        planned: Any,
        parameters: Sequence[torch.nn.Parameter],
        order: Sequence[int],
        *,
        name: str,
        wire_dtype: str | None,
        buffer_bytes: int,
        group: Group | None = None,
    ) -> None:
        """Plans (collective; same arguments on every rank).

        Args:
          planned: `herring.PlannedReduction`, or what stands in for it in a test.
          parameters: in registration order.
          order: indices into `parameters`, in the order gradients are produced.
          name: name of the operation.
          wire_dtype: passed on.
          buffer_bytes: passed on.
          group: passed on.
        """
        usage_size = len(parameters) + len(FLAGS)
        gradients = [(parameters[i].numel(), dtype_name(parameters[i].dtype)) for i in order]
        gradients.append((usage_size, "float32"))
        self.order = list(order)
        self.plan = planned(
            gradients,
            name=name,
            op="average",
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
            group=group,
        )
        # The arrays own the memory for as long as any view of it lives.
        arenas = [torch.from_numpy(self.plan.arena(i)) for i in range(len(self.plan.arenas))]
        placements = self.plan.placements
        self.entry = [0] * len(parameters)  # parameter -> index in the plan
        self.views: list[torch.Tensor] = [torch.empty(0)] * len(parameters)
        for entry, index in enumerate(order):
            arena, offset, nbytes = placements[entry]
            parameter = parameters[index]
            flat = arenas[arena][offset : offset + nbytes].view(parameter.dtype)
            self.views[index] = flat.as_strided(
                parameter.shape, dense_strides(parameter.detach()), flat.storage_offset()
            )
            self.entry[index] = entry
        self._addresses = [view.data_ptr() for view in self.views]
        self._aliases = [view.detach() for view in self.views]
        arena, offset, nbytes = placements[len(order)]
        self.usage = arenas[arena][offset : offset + nbytes].view(torch.float32)
        self.usage_entry = len(order)
        self.usage.zero_()

    def holds(self, index: int, gradient: torch.Tensor) -> bool:
        """Whether `gradient` lies in the place of parameter `index`."""
        view = self.views[index]
        return (
            gradient.layout == torch.strided
            and gradient.data_ptr() == self._addresses[index]
            and gradient.dtype == view.dtype
            and gradient.stride() == view.stride()
        )

    def alias(self, index: int) -> torch.Tensor:
        """A tensor over the place of parameter `index`, the same one while it lies there."""
        if not self.holds(index, self._aliases[index]):
            self._aliases[index] = self.views[index].detach()
        return self._aliases[index]

    def fill(self, indices: Sequence[int], gradients: Iterable[torch.Tensor | None]) -> None:
        """Copies gradients (None: zeros), none of which lies in the arena, to their places."""
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        empty: list[torch.Tensor] = []
        for index, gradient in zip(indices, gradients):
            if gradient is None:
                empty.append(self.views[index])
            else:
                sources.append(gradient)
                targets.append(self.views[index])
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
            if empty:
                torch._foreach_zero_(empty)

    def ready(self, indices: Sequence[int]) -> None:
        """Reports the gradients of these parameters; they are in their places."""
        entry = self.entry
        self.plan.ready_all([entry[index] for index in indices])

    @staticmethod
    def reaches(parameter: torch.nn.Parameter) -> bool:
        """Whether `.grad` of a parameter may be its place: not on another device."""
        return parameter.device.type == "cpu"

    def report(self, used: bytes | bytearray, **flags: bool) -> None:
        """Fills in this rank's usage and flags (of `FLAGS`; False if not given); marks it ready."""
        line = bytearray(used)
        line.extend(flags.get(flag, False) for flag in FLAGS)
        self.usage.copy_(torch.frombuffer(line, dtype=torch.uint8))
        self.plan.ready(self.usage_entry)

    def outcome(self) -> tuple[set[int], set[str]]:
        """After a round: parameters used by no rank; flags that some rank has set."""
        count = len(self.views)
        unused = set((self.usage[:count] <= 0).nonzero().view(-1).tolist())
        return unused, {
            flag for flag, value in zip(FLAGS, self.usage[count:].tolist()) if value > 0
        }

    def close(self) -> None:
        """Ends the plan. Views stay readable."""
        self.plan.close()
