"""Averages gradients while the backward pass runs; the engine of both wrappers."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import herring
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.agreement import describe, ranks_text, require_agreement
from herring.torch.ownership import Pausable, claim, collect, release, runs_last
from herring.torch.slots import GradientSlots
from herring.torch.tensors import dtype_name, warn_once, wire_dtype_name


def in_backward() -> bool:
    """Whether the calling thread is inside a backward pass."""
    return torch._C._current_graph_task_id() != -1


def _first_leaf(node: Any) -> Any:
    """Some node without successors below `node` that accumulates into a leaf, or None."""
    seen = set()
    stack = [node]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        if hasattr(node, "variable"):
            return node
        seen.add(node)
        stack.extend(successor for successor, _ in node.next_functions)
    return None


class GradientReducer(Pausable):
    """Averages the gradients of a fixed list of parameters over all ranks, round by round.

    A hook on each parameter puts its gradient in its place and marks it ready; when the backward
    pass is through, everything else that makes up the round is added, and the pass returns once
    all is averaged. What a rank contributes for a parameter is its `.grad` at that moment, None
    counting as zeros; where it is None on every rank it stays None.

    The first round uses reverse registration order and starts after the pass, while rank 0 records
    in which order gradients are produced; that order, handed to all, is the final plan's.

    A gradient that is accumulated again after it was marked ready (reentrant checkpoints, shared
    parameters across nested passes) is caught before it can touch the memory in flight: it is kept
    aside and averaged in a second pass over the same plan, which every rank learns of through the
    flags in `usage`. From then on this rank reports that parameter only at the end.

    Attributes:
      rounds: rounds finished.
      contributors: workers in the last round's average.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        wire_dtype: str | torch.dtype | None = None,
        buffer_bytes: int = 0,
        sparse: str = "densify",
        planned: Callable[..., Any] | None = None,
    ) -> None:
        """Checks the parameters, compares them across ranks and plans (collective).

        Args:
          named_parameters: in registration order; parameters that are frozen, empty or seen before
            are passed over.
          name: the same on every rank, different for each reducer.
          wire_dtype: "float16" or "bfloat16" halves the bytes of float32 gradients; None sends
            them as they are.
          buffer_bytes: size of a fusion buffer; 0 lets the plan choose.
          sparse: what to do with sparse gradients: "densify" (one warning) or "error".
          planned: stands in for `herring.planned.PlannedReduction` in tests.

        Raises:
          InvalidArgumentError: a dtype that cannot be averaged, an unknown option, or a parameter
            that another reducer averages already.
          MismatchError: the parameters differ between ranks.
        """
        if sparse not in ("densify", "error"):
            raise InvalidArgumentError(f"sparse must be 'densify' or 'error', not {sparse!r}")
        if buffer_bytes < 0:
            raise InvalidArgumentError(f"buffer_bytes must not be negative, got {buffer_bytes}")
        self.name = name
        self.rounds = 0
        self.contributors = 0
        self._sparse = sparse
        self._wire_dtype = wire_dtype_name(wire_dtype)
        self._buffer_bytes = buffer_bytes
        if planned is None:
            from herring.planned import PlannedReduction as planned  # noqa: N813
        self._planned = planned
        self._names, self._parameters = collect(named_parameters)
        claim(self._parameters, self)
        require_agreement(
            [
                f"sync='full' wire_dtype={self._wire_dtype} buffer_bytes={buffer_bytes}",
                *(describe(n, p) for n, p in zip(self._names, self._parameters)),
            ],
            what="entry",
            name=f"{name}.parameters",
        )
        count = len(self._parameters)
        self._lock = threading.RLock()  # gradients on several devices arrive on several threads
        self._open = False
        self._active = True
        self._failing = False
        self._ready = bytearray(count)
        self._deferred: set[int] = set()  # parameters known to accumulate more than once
        self._leftovers: dict[int, torch.Tensor] = {}
        self._produced: dict[int, None] = {}  # rank 0: parameters in order of production
        self._final = False
        self._slots: GradientSlots | None = None
        if count:
            self._slots = self._plan(range(count - 1, -1, -1), f"{name}.first")
        self._removals = self._register_hooks()

    def _plan(self, order: Iterable[int], name: str) -> GradientSlots:
        return GradientSlots(
            self._planned,
            self._parameters,
            list(order),
            name=name,
            wire_dtype=self._wire_dtype,
            buffer_bytes=self._buffer_bytes,
        )

    def _register_hooks(self) -> list[Any]:
        # Weak, because the engine's hooks are out of the garbage collector's sight.
        myself = weakref.ref(self)

        def before(index: int) -> Callable[[torch.Tensor], None]:
            def hook(_gradient: torch.Tensor) -> None:
                if (reducer := myself()) is not None:
                    reducer._before_accumulation(index)

            return hook

        def after(index: int) -> Callable[[torch.Tensor], None]:
            def hook(_parameter: torch.Tensor) -> None:
                if (reducer := myself()) is not None:
                    reducer._after_accumulation(index)

            return hook

        removals = []
        for index, parameter in enumerate(self._parameters):
            removals.append(parameter.register_hook(before(index)))
            removals.append(parameter.register_post_accumulate_grad_hook(after(index)))
        return removals

    # -- during the backward pass ---------------------------------------------------------------

    def arm(self) -> None:
        """Starts a round that ends with the backward pass now running, if none is open yet."""
        with self._lock:
            if self._open or not self.enabled or self._slots is None:
                return
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            self._begin(active=True)

    def arm_from_output(self) -> None:
        """As `arm`, from a hook on the model's output: not in passes that leave parameters alone.

        `torch.autograd.grad` also passes through outputs but accumulates nothing.
        """
        if not self._open and self.enabled and self._accumulates():
            self.arm()

    def _accumulates(self) -> bool:
        """Whether the pass now running, seen from a hook on an output, adds to `.grad` of leaves.

        A plain backward pass executes every leaf of its graph, so any leaf tells; with
        `backward(inputs=...)` it takes one of ours.
        """
        leaf = _first_leaf(torch._C._current_autograd_node())
        ours = (
            torch.autograd.graph.get_gradient_edge(parameter).node
            for parameter in self._parameters
            if parameter.requires_grad
        )
        leaves = ours if leaf is None else itertools.chain([leaf], ours)
        try:
            return any(map(torch._C._will_engine_execute_node, leaves))
        except RuntimeError:  # how torch says that this is autograd.grad, with respect to the leaf
            return False

    def _begin(self, *, active: bool) -> None:
        self._ready[:] = bytes(len(self._ready))
        self._leftovers.clear()
        self._active = active
        self._slots.plan.begin(active=active)
        self._open = True

    def _before_accumulation(self, index: int) -> None:
        if self._open and self._ready[index] and index not in self._leftovers:
            # Autograd would add into memory that is being averaged, or to what has been sent.
            self._parameters[index].grad = None

    def _after_accumulation(self, index: int) -> None:
        if not self.enabled:
            return
        with self._lock:
            if not self._open:
                self.arm()
            if not self._final:
                if self._produced.pop(index, self) is None:
                    self._deferred.add(index)
                self._produced[index] = None
            elif self._ready[index]:
                self._leftovers[index] = self._dense(index, self._parameters[index].grad)
            elif index not in self._deferred and self._runs_last(index):
                self._contribute(index)

    def _runs_last(self, index: int) -> bool:
        # A user's hook that comes after ours may still change or replace the gradient, which is
        # then taken at the end of the pass; from the next pass on ours comes after it.
        return runs_last(self._parameters[index], self._removals[2 * index + 1])

    def _dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if gradient.layout == torch.strided:
            return gradient
        if self._sparse == "error":
            raise InvalidArgumentError(
                f"parameter {self._names[index]!r} has a sparse gradient, and sparse='error' was "
                "asked for; build its module with sparse=False, or pass sparse='densify'"
            )
        warn_once(
            "sparse",
            "herring.torch: sparse gradients are made dense before they are averaged; build the "
            f"module with sparse=False to save that (first seen in {self._names[index]!r})",
        )
        return gradient.to_dense()

    def _contribute(self, index: int) -> bool:
        """Puts this rank's gradient of a parameter in its place; whether there is one."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if gradient is not None:
            gradient = self._dense(index, gradient)
        self._slots.place(index, gradient)
        self._ready[index] = 1
        self._slots.plan.ready(self._slots.entry[index])
        if gradient is not None and self._final:
            self._show(index)
        return gradient is not None

    def _show(self, index: int) -> None:
        """Makes `.grad` the place in the arena, or, where it cannot be, a copy of it."""
        parameter = self._parameters[index]
        gradient = parameter.grad
        if gradient is not None and self._slots.holds(index, gradient):
            return
        view = self._slots.views[index]
        if parameter.dtype != view.dtype:
            raise InvalidArgumentError(
                f"parameter {self._names[index]!r} was {dtype_name(view.dtype)} when {self.name!r} "
                f"was made and is {dtype_name(parameter.dtype)} now; convert the model first"
            )
        if self._final and self._slots.reaches(parameter):
            parameter.grad = self._slots.alias(index)
        elif self._open:
            pass  # elsewhere than in the arena, .grad becomes the average when there is one
        elif gradient is None or gradient.layout != torch.strided:
            parameter.grad = view.to(parameter.device, copy=True)
        else:
            gradient.detach().copy_(view)

    # -- at its end -----------------------------------------------------------------------------

    def _after_backward(self) -> None:
        with self._lock:
            if self._open:
                self._finish()

    def finish_step(self) -> None:
        """Ends the round for a rank on which no hook has run since the last one (collective).

        The other ranks wait for it at the end of their backward pass.
        """
        if self._slots is not None and not self._open:
            self._begin(active=True)
            self._finish()

    @property
    def round_open(self) -> bool:
        """Whether a backward pass has begun a round and not ended it."""
        return self._open

    def abandon(self) -> None:
        """Ends a round whose backward pass raised, so that the ranks stay in step (collective).

        The others, who wait for this round at the end of their backward pass, raise `HerringError`
        there. Gradients are cleared on all ranks.
        """
        if not self._open:
            return
        self._failing = True
        try:
            self._finish()
        finally:
            self._failing = False

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has run out of data."""
        if self._slots is not None:
            self._begin(active=False)
            self._finish()

    def _finish(self) -> None:
        slots = self._slots
        used = [False] * len(self._parameters)
        try:
            if self._active:
                for index in slots.order:
                    if self._ready[index]:
                        used[index] = True
                    elif self._failing:
                        slots.plan.ready(slots.entry[index])
                    else:
                        used[index] = self._contribute(index)
                slots.report(used, leftover=bool(self._leftovers), failed=self._failing)
            slots.plan.wait()
        finally:
            self._open = False
        self.rounds += 1
        self.contributors = slots.plan.contributors
        used, leftover, failed = slots.outcome()
        if failed:
            self._raise_failure()
            return
        if leftover:
            used = self._second_pass(used)
        if self._active:
            for index, anywhere in enumerate(used):
                if anywhere:
                    self._show(index)
                else:
                    self._parameters[index].grad = None
        if not self._final:
            self._finalize()

    def _second_pass(self, used: list[bool]) -> list[bool]:
        """Averages what came too late for the round, and adds it to the round's averages."""
        slots = self._slots
        first = [view.clone() for view in slots.views]
        slots.plan.begin(active=self._active)
        if self._active:
            for index in slots.order:
                slots.place(index, self._leftovers.get(index))
                slots.plan.ready(slots.entry[index])
            late = [index in self._leftovers for index in range(len(used))]
            slots.report(late, leftover=False, failed=False)
        slots.plan.wait()
        self._deferred.update(self._leftovers)
        self._leftovers.clear()
        late, _, _ = slots.outcome()
        for view, average in zip(slots.views, first):
            view.add_(average)
        return [a or b for a, b in zip(used, late)]

    def _raise_failure(self) -> None:
        failing = herring.allgather_object(self._failing, name=f"{self.name}.failed")
        for parameter in self._parameters:
            parameter.grad = None
        self._produced.clear()
        self._leftovers.clear()
        if self._failing or not self._active:
            return
        culprits = [rank for rank, flag in enumerate(failing) if flag]
        raise HerringError(
            f"{self.name} round {self.rounds}: {ranks_text(culprits)} did not finish the backward "
            "pass (it raised there); this step has no gradients, and they were cleared on all "
            "ranks. Look at the output of that rank; to go on, skip this step on every rank"
        )

    def _finalize(self) -> None:
        """Hands rank 0's order of production to all and makes the final plan of it."""
        count = len(self._parameters)
        order = np.zeros(count + 1, np.int64)  # how many were produced, then which
        if herring.rank() == 0:
            order[0] = len(self._produced)
            order[1 : 1 + len(self._produced)] = list(self._produced)
        self._produced.clear()
        herring.broadcast(order, 0, name=f"{self.name}.order")
        produced = order[1 : 1 + int(order[0])].tolist()
        if not produced:
            return  # rank 0 has run out of data, or used nothing: try again in the next round
        known = set(produced)
        produced += [i for i in range(count - 1, -1, -1) if i not in known]
        # In the first round .grad is memory of its own, so nothing refers to the first arena.
        if produced != self._slots.order:
            self._slots.close()
            self._slots = None
            self._slots = self._plan(produced, self.name)
        self._final = True

    # -- the rest -------------------------------------------------------------------------------

    def close(self) -> None:
        """Removes the hooks and ends the plan. `.grad` views stay readable.

        Collective where a backward pass has raised: its round is given up first.
        """
        self.abandon()
        for handle in self._removals:
            handle.remove()
        self._removals = []
        release(self._parameters, self)
        if self._slots is not None:
            self._slots.close()
            self._slots = None
        self._open = False
