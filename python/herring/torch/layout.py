"""The places of gradients in the arenas of a planned reduction, as torch tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from herring.arrays.groups import Group
from herring.arrays.planned import PlannedReduction
from herring.errors import InvalidArgumentError
from herring.torch import devices
from herring.torch.tensors import check_not_capturing, dense_strides, dtype_name, warn_once

# A round's note (the bytes that travel with its gradients) has one byte per parameter, which says
# whether the rank used it. Behind these bytes come flags. "again": a gradient has grown after it
# was sent. "changed": the rank has parameters to average that the plan lacks. "failed": its
# backward pass failed. "without": the rank takes part without a backward pass through the model.
# The bytes of the number of steps, and of its complement, come last. At each place the ranks' notes
# together have the largest byte of any rank, which shows whether the numbers differ.
FLAGS = ("again", "changed", "failed", "without")
STEP_BYTES = 4

# Gradients are copied to their places in batches of at least this many bytes (or a fusion buffer).
# One call then copies many small gradients while each is still in the processor's cache.
_BATCH_BYTES = 256 << 10
# Queueing a copy on a GPU takes as long as moving some 200 kB over its link.
_GPU_BATCH_BYTES = 2 << 20


class Options(NamedTuple):
    """The options of a `GradientReducer`, which its constructor describes."""

    name: str
    wire_dtype: str | None
    buffer_bytes: int
    sparse: str
    views: bool
    group: Group | None
    divide_by_all: bool


class Layout:
    """A planned reduction over the gradients of `parameters`, and a view of each place.

    Attributes:
      parameters: The parameters in registration order. Below, a parameter is its index here.
      order: The parameters that have a place, in the order in which gradients are produced.
      sparse: The other parameters, whose gradients are exchanged by rows.
      deferred: Parameters that are known to accumulate more than once in a pass.
      found: Parameters whose gradients were sparse and were made dense.
      final: Whether the order was recorded. Until then gradients are sent after the pass.
      gpu: The GPU on which all parameters, and so the arenas, are; None means host memory.
      views: The place of each parameter, empty if it has none. A view has the parameter's shape and
        dtype, and gap-free strides in the parameter's dimension order. Only this package uses the
        views. Users get aliases, because `module.to()` and similar calls point existing gradient
        tensors to other memory.
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
        """Makes the plan (collective; same arguments on every rank); `name` is the operation's."""
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
        # Those whose gradients torch copies to host memory.
        self._copied = [p for p in parameters if p.is_cuda] if self.gpu is None else []
        self._warn_of_copies()
        self.plan = PlannedReduction(
            [(parameters[i].numel(), dtype_name(parameters[i].dtype)) for i in order],
            name=name,
            op="average",
            wire_dtype=options.wire_dtype,
            buffer_bytes=options.buffer_bytes,
            group=options.group,
            note_bytes=len(parameters) + len(FLAGS) + 2 * STEP_BYTES,
            device=self.gpu,
            divide_by_all=options.divide_by_all,
        )
        arenas = self._arenas(order)
        self._entries = {index: entry for entry, index in enumerate(order)}  # places in the plan
        self.views: list[torch.Tensor] = [torch.empty(0, device="cpu")] * len(parameters)
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
                f"herring.torch: parameters of {self.options.name!r} are on "
                f"{' and '.join(sorted(there))}, so torch copies gradients of GPUs to host memory "
                "and back, and waits for each; give each worker one GPU",
            )

    def _arenas(self, order: Sequence[int]) -> list[torch.Tensor]:
        """Returns the plan's arenas as bytes; they own their memory as long as a view lives."""
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
        """Returns the final layout (collective): first the order `produced`, then the others."""
        order = dict.fromkeys([*produced, *range(len(self.parameters) - 1, -1, -1)])
        final = [index for index in order if index not in sparse]
        layout = self
        if final != self.order:
            self.close()  # .grad does not use the arena before the final layout
            layout = type(self)(self.options, self.names, self.parameters, sparse, final, name=name)
            layout.deferred, layout.hooks = self.deferred, self.hooks
        layout.final = True
        return layout

    def close(self) -> None:
        """Ends the plan and releases its memory; views that others hold stay readable."""
        self.plan.close()
        self.views, self._aliases = [], []

    def holds(self, index: int, gradient: torch.Tensor) -> bool:
        """Returns whether `gradient` is in the place of parameter `index`."""
        view = self.views[index]
        return (
            gradient.layout == torch.strided
            and gradient.data_ptr() == self._addresses[index]
            and gradient.dtype == view.dtype
            and gradient.stride() == view.stride()
        )

    def reaches(self, index: int) -> bool:
        """Returns whether `.grad` may be the parameter's place, which must be on its device."""
        return self.parameters[index].device == self.views[index].device

    def prepare(self) -> None:
        """Moves gradients out of the arena before a round.

        The caller tells the other ranks of an error, which wait for this one in the round.

        Raises:
          InvalidArgumentError: A parameter's dtype has changed since the plan was made, or it has
            left the GPU on which the plan was made. Or a CUDA graph is being captured.
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
        elif self._copied:
            check_not_capturing(self._copied, self.options.name)
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
                    f"parameter {self.names[index]!r} was on {before} when {self.options.name!r} "
                    f"was made and is on {now} now; move the model first, or close() the wrapper "
                    "and make a new one"
                )

    def ready(self, indices: Iterable[int]) -> None:
        """Reports that the gradients of these parameters are in their places."""
        self.plan.ready_all([self._entries[index] for index in indices])

    def show(self, unused: set[int], averages: dict[int, torch.Tensor | None]) -> None:
        """Makes `.grad` of all parameters the averages.

        Args:
          averages: The averages of parameters that have no place, by parameter.
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
    """Returns whether an average may be written to this gradient's own memory."""
    return (
        gradient is not None
        and gradient.layout == torch.strided
        and not gradient.requires_grad
        and 0 not in gradient.stride()  # expanded: its elements share memory
    )
