"""The places of gradients in the arenas of a planned reduction, as torch tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from herring.arrays.groups import Group
from herring.arrays.planned import PlannedReduction
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.tensors import dense_strides, dtype_name, warn_once

# Behind a byte for each parameter, which says whether a rank has used it, a round's note has these:
# a gradient of the rank has grown after it was sent; it has parameters to average that the plan
# lacks; its backward pass has failed.
FLAGS = ("again", "changed", "failed")

# Gradients are copied to their places in batches of at least this many bytes (or a fusion buffer):
# one call for many small ones, while each is still in the processor's cache.
_BATCH_BYTES = 256 << 10
# On a GPU a copy that is queued takes as long as some 200 kB over its link.
_GPU_BATCH_BYTES = 2 << 20


class Options(NamedTuple):
    """What a `GradientReducer` was made with; see there."""

    name: str
    wire_dtype: str | None
    buffer_bytes: int
    sparse: str
    views: bool
    group: Group | None


class Layout:
    """One planned reduction over the gradients of `parameters`, and a view of each place.

    Attributes:
      options: of the reducer.
      names: of the parameters.
      parameters: in registration order; below, a parameter is its index here.
      order: parameters that have a place, in the order in which gradients are produced.
      sparse: the others, whose gradients are exchanged by rows.
      deferred: parameters known to accumulate more than once in a pass.
      found: parameters whose gradients were sparse, and were made dense.
      final: whether the order was recorded. Until then gradients are sent after the pass.
      hooks: handles of the reducer's hooks, one for each parameter.
      plan: the planned reduction.
      gpu: the GPU on which the arenas lie, as all parameters do; None: in host memory.
      views: per parameter its place, with the parameter's shape and dtype and gap-free strides in
        the parameter's dimension order; empty where it has none. They are for use here only. Others
        get an alias, as `module.to()` and the like point existing gradient tensors to other memory.
      nbytes: per parameter, of its gradient.
      batch_bytes: how many bytes of gradients are sent at once.
    """

    def __init__(
        self,
        options: Options,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        sparse: Collection[int],
        order: Sequence[int],
        *,
        name: str,
    ) -> None:
        """Plans (collective; same arguments on every rank); `name` is that of the operation."""
        self.options = options
        self.names, self.parameters = names, parameters
        self.order = list(order)
        self.sparse = set(sparse)
        self.deferred: set[int] = set()
        self.found: set[int] = set()
        self.final = False
        self.hooks: list[Any] = []
        self.gpu = devices.common_gpu(parameters[i] for i in order)
        self._devices = [p.device for p in parameters]
        self._warn_of_copies()
        self.plan = PlannedReduction(
            [(parameters[i].numel(), dtype_name(parameters[i].dtype)) for i in order],
            name=name,
            op="average",
            wire_dtype=options.wire_dtype,
            buffer_bytes=options.buffer_bytes,
            group=options.group,
            note_bytes=len(parameters) + len(FLAGS),
            device=self.gpu,
        )
        arenas = self._arenas(order)
        self._entries = {index: entry for entry, index in enumerate(order)}  # in the plan
        self.views: list[torch.Tensor] = [torch.empty(0)] * len(parameters)
        for index, (arena, offset, nbytes) in zip(order, self.plan.placements):
            parameter = parameters[index]
            flat = arenas[arena][offset : offset + nbytes].view(parameter.dtype)
            self.views[index] = flat.as_strided(
                parameter.shape, dense_strides(parameter.detach()), flat.storage_offset()
            )
        self._addresses = [view.data_ptr() for view in self.views]
        self._aliases = [view.detach() for view in self.views]
        self._dtypes = [p.dtype for p in parameters]
        self.nbytes = [p.numel() * p.element_size() for p in parameters]
        batch_bytes = _BATCH_BYTES if self.gpu is None else _GPU_BATCH_BYTES
        self.batch_bytes = min([batch_bytes, *(size for _, _, size in self.plan.buffers[:-1])])

    def _warn_of_copies(self) -> None:
        there = {str(self._devices[index]) for index in self.order}
        if len(there) > 1 and any(self.parameters[index].is_cuda for index in self.order):
            warn_once(
                f"devices {self.options.name}",
                f"herring.torch: parameters of {self.options.name!r} lie on "
                f"{' and '.join(sorted(there))}, so torch copies gradients of GPUs to host memory "
                "and back, and waits for each; give each worker one GPU",
            )

    def _arenas(self, order: Sequence[int]) -> list[torch.Tensor]:
        """Of the plan, as bytes. They own their memory for as long as any view of it lives."""
        plan = self.plan
        if self.gpu is None:
            return [torch.from_numpy(plan.arena(i)) for i in range(len(plan.arenas))]
        device = self.parameters[order[0]].device
        arenas = [
            torch.empty(nbytes, dtype=torch.uint8, device=device) for _, nbytes in plan.arenas
        ]
        plan.place([devices.exported(arena) for arena in arenas])
        return arenas

    def in_order(self, produced: Sequence[int], sparse: Collection[int], name: str) -> Layout:
        """The final layout (collective): gradients in the order `produced`, then all others."""
        order = dict.fromkeys([*produced, *range(len(self.parameters) - 1, -1, -1)])
        final = [index for index in order if index not in sparse]
        layout = self
        if final != self.order:
            self.close()  # until now .grad is memory of its own: nothing refers to the arena
            layout = type(self)(self.options, self.names, self.parameters, sparse, final, name=name)
            layout.deferred, layout.hooks = self.deferred, self.hooks
        layout.final = True
        return layout

    def close(self) -> None:
        """Ends the plan, and lets go of its memory. Views that others have stay readable."""
        self.plan.close()
        self.views, self._aliases = [], []

    def holds(self, index: int, gradient: torch.Tensor) -> bool:
        """Whether `gradient` lies in the place of parameter `index`."""
        view = self.views[index]
        return (
            gradient.layout == torch.strided
            and gradient.data_ptr() == self._addresses[index]
            and gradient.dtype == view.dtype
            and gradient.stride() == view.stride()
        )

    def reaches(self, index: int) -> bool:
        """Whether `.grad` of a parameter may be its place: not on another device."""
        return self.parameters[index].device == self.views[index].device

    def prepare(self) -> None:
        """Before a round: moves gradients out of the arena.

        The caller tells the other ranks of an error, which wait for this one in the round.

        Raises:
          InvalidArgumentError: a parameter has another dtype than when the plan was made, or has
            left the GPU on which the plan was made.
        """
        now = [parameter.dtype for parameter in self.parameters]
        if now != self._dtypes:
            name, before, after = next(
                one for one in zip(self.names, self._dtypes, now) if one[1] != one[2]
            )
            raise InvalidArgumentError(
                f"parameter {name!r} was {dtype_name(before)} when {self.options.name!r} was made "
                f"and is {dtype_name(after)} now; convert the model first"
            )
        if self.gpu is not None:
            self._require_there()
        if self.options.views and self.final:
            for index in self.order:
                gradient = self.parameters[index].grad
                if gradient is not None and self.holds(index, gradient):
                    self.parameters[index].grad = gradient.clone()

    def _require_there(self) -> None:
        for index in self.order:
            before, now = self._devices[index], self.parameters[index].device
            if now != before:
                raise InvalidArgumentError(
                    f"parameter {self.names[index]!r} lay on {before} when {self.options.name!r} "
                    f"was made and lies on {now} now; move the model first, or close() the wrapper "
                    "and make a new one"
                )

    def ready(self, indices: Iterable[int]) -> None:
        """Reports the gradients of these parameters; they are in their places."""
        self.plan.ready_all([self._entries[index] for index in indices])

    def show(self, unused: set[int], averages: dict[int, torch.Tensor | None]) -> None:
        """Makes `.grad` of all parameters the averages.

        Args:
          unused: parameters that no rank has used.
          averages: by parameter, those that have no place.
        """
        options = self.options
        gradients = [parameter.grad for parameter in self.parameters]
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        if not (unused or averages or options.views) and all(map(_plain, gradients)):
            targets, sources = gradients, self.views
        else:
            for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients)):
                view = self.views[index]
                if index in averages:
                    parameter.grad = averages[index]
                elif index in unused:
                    parameter.grad = None
                elif options.views and self.final and self.reaches(index):
                    if not self.holds(index, self._aliases[index]):
                        self._aliases[index] = view.detach()
                    parameter.grad = self._aliases[index]
                elif _plain(gradient):
                    targets.append(gradient)
                    sources.append(view)
                else:
                    average = view.to(parameter.device, copy=True)
                    if gradient is not None and gradient.is_sparse and options.sparse == "keep":
                        average = average.to_sparse(gradient.sparse_dim())
                    parameter.grad = average
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)


def _plain(gradient: torch.Tensor | None) -> bool:
    """Whether an average may be written into this gradient's own memory."""
    return gradient is not None and gradient.layout == torch.strided and not gradient.requires_grad
