"""Averages gradients while the backward pass runs; the engine of both wrappers."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch

import herring
from herring.arrays.agreement import job_ranks, ranks_text, require_agreement
from herring.arrays.arguments import shown
from herring.arrays.groups import Group, scope_of
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.layout import Layout, Round
from herring.torch.ownership import Pausable, claim, collect
from herring.torch.passes import EndsWithPass
from herring.torch.slots import GradientSlots
from herring.torch.sparse import average_sparse
from herring.torch.tensors import describe, wire_dtype_name


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


def accumulates(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Whether the pass now running, seen from a hook on an output, adds to `.grad` of leaves.

    A plain backward pass executes every leaf of its graph, so any leaf tells; with
    `backward(inputs=...)` it takes one of `parameters`.
    """
    leaf = _first_leaf(torch._C._current_autograd_node())
    ours = (
        torch.autograd.graph.get_gradient_edge(parameter).node
        for parameter in parameters
        if parameter.requires_grad
    )
    leaves = ours if leaf is None else itertools.chain([leaf], ours)
    try:
        return any(map(torch._C._will_engine_execute_node, leaves))
    except RuntimeError:  # how torch says that this is autograd.grad, with respect to the leaf
        return False


class GradientReducer(Pausable, EndsWithPass):
    """Averages the gradients of a list of parameters over all ranks, round by round.

    A hook on each parameter notes that its gradient is there; batches of them are copied to their
    places in the arena and marked ready. When the backward pass is through, everything else that
    makes up the round is added, and the pass returns once all is averaged. What a rank contributes
    for a parameter is its `.grad` at that moment, None counting as zeros; where it is None on every
    rank it stays None. The averages are copied into `.grad`, so that gradients which somebody keeps
    are never written to by a later round; with `views` they lie in the arena instead.

    The first round uses reverse registration order and starts after the pass, while rank 0 records
    in which order gradients are produced; that order, handed to all, is the final plan's.

    While a round is open no `.grad` lies in the arena. So a gradient that is accumulated again
    after it was sent (reentrant checkpoints, shared parameters across nested passes) is whole at
    the end of the pass: its rank says so in the flags of the round, which is then repeated by all.
    From then on this rank reports that parameter only at the end. In the same way a rank says that
    it has more parameters to average than the plan (some were frozen and are not now): all plan
    anew, and repeat the round.

    Attributes:
      rounds: rounds finished.
      given_up: the last one was given up, as a backward pass raised.
      contributors: workers in the last round's average.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        wire_dtype: str | torch.dtype | None = None,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        views: bool = False,
        sparse_parameters: Collection[torch.nn.Parameter] = (),
        relist: Callable[[], list[tuple[str, torch.nn.Parameter]] | None] | None = None,
        planned: Callable[..., Any] | None = None,
        group: Group | None = None,
    ) -> None:
        """Checks the parameters, compares them across ranks and plans (collective).

        Args:
          named_parameters: in registration order; parameters that are empty or seen before are
            passed over, frozen ones until they require gradients.
          name: the same on every rank, different for each reducer.
          wire_dtype: "float16" or "bfloat16" halves the bytes of float32 gradients; None sends
            them as they are.
          buffer_bytes: size of a fusion buffer; 0 lets the plan choose.
          sparse: what to do with sparse gradients: "keep" exchanges the rows they have, "densify"
            makes them dense (one warning), "error" refuses them.
          views: leave the averages in the arena, and make `.grad` a view of it.
          sparse_parameters: those known to have sparse gradients; with "keep" others are found in
            the first round.
          relist: called at the end of each backward pass: the present list of named parameters if
            it may have changed since the last call, else None.
          planned: stands in for `herring.PlannedReduction` in tests.
          group: whose workers' gradients are averaged; None: of all. "Ranks" and "all" are its.

        Raises:
          InvalidArgumentError: a dtype that cannot be averaged, an unknown option, or a parameter
            that another reducer averages already.
          MismatchError: the parameters differ between ranks.
        """
        if not isinstance(sparse, str) or sparse not in ("keep", "densify", "error"):
            raise InvalidArgumentError(
                f"sparse must be 'keep', 'densify' or 'error', not {shown(sparse)}"
            )
        if buffer_bytes < 0:
            raise InvalidArgumentError(f"buffer_bytes must not be negative, got {buffer_bytes}")
        super().__init__(name, group)
        self.name = name
        self._group = group
        self.rounds = 0
        self.given_up = False
        self.contributors = 0
        self._sparse = sparse
        self._views = views
        wire_dtype = wire_dtype_name(wire_dtype)
        wire_dtype = None if wire_dtype == "float32" else wire_dtype  # as they are
        self._options = (
            f"sync='full' wire_dtype={wire_dtype} buffer_bytes={buffer_bytes} "
            f"views={views} sparse={sparse!r}"
        )
        self._relist = relist
        if planned is None:
            from herring.arrays.planned import PlannedReduction as planned  # noqa: N813
        self._plan = functools.partial(
            GradientSlots, planned, wire_dtype=wire_dtype, buffer_bytes=buffer_bytes, group=group
        )
        self._generation = 0
        self._lock = threading.RLock()  # gradients on several devices arrive on several threads
        self._round: Round | None = None  # the one that is open
        self._layout = Layout(name, [], [], [], set(), mode=sparse, views=views)
        self._sparse_ids = {id(parameter) for parameter in sparse_parameters}
        listed = list(named_parameters)
        self._known = weakref.WeakValueDictionary({id(p): p for _, p in listed})
        self._set_up(name, listed)

    def _set_up(self, name: str, listed: list[tuple[str, torch.nn.Parameter]]) -> None:
        """Plans for the parameters now listed; the plan before goes (collective)."""
        names, parameters = collect(listed, self)
        strange = [n for n, p in zip(names, parameters) if self._known.get(id(p)) is not p]
        keep = self._sparse == "keep"
        sparse = {i for i, p in enumerate(parameters) if keep and id(p) in self._sparse_ids}
        require_agreement(
            [
                self._options,
                *(
                    describe(n, p) + (" with sparse gradients" if i in sparse else "")
                    for i, (n, p) in enumerate(zip(names, parameters))
                ),
                f"put in after {self.name} was made: {', '.join(strange)}",
            ],
            what="entry",
            name=f"{name}.parameters",
            group=self._group,
        )
        if strange:
            raise InvalidArgumentError(
                f"{self.name}: parameter {strange[0]!r} "
                + (f"and {len(strange) - 1} more were" if len(strange) > 1 else "was")
                + " put in after it was made, so the ranks may hold different values; after "
                "replacing parts of a model close() the wrapper and make a new one"
            )
        self._layout.end(self)
        claim(parameters, self)
        self._layout = layout = Layout(
            self.name, listed, names, parameters, sparse, mode=self._sparse, views=self._views
        )
        if parameters:
            order = [i for i in range(len(parameters) - 1, -1, -1) if i not in sparse]
            layout.slots = self._plan(parameters, order, name=f"{name}.first")
        layout.removals = self._register_hooks()

    def _register_hooks(self) -> list[Any]:
        # Weak, because the engine's hooks are out of the garbage collector's sight.
        myself = weakref.ref(self)

        def make(index: int) -> Callable[[torch.Tensor], None]:
            def hook(_parameter: torch.Tensor) -> None:
                if (reducer := myself()) is not None and reducer.enabled:
                    reducer._produced(index)

            return hook

        return [
            parameter.register_post_accumulate_grad_hook(make(index))
            for index, parameter in enumerate(self._layout.parameters)
        ]

    # -- during the backward pass ---------------------------------------------------------------

    def arm(self) -> None:
        """Starts a round that ends with the backward pass now running, if none is open yet."""
        with self._lock:
            if self._round is not None or not self.enabled or not self._has_plan():
                return
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            self._begin()
            self._enter_pass()

    def arm_from_output(self) -> None:
        """As `arm`, from a hook on the model's output: not in passes that leave parameters alone.

        `torch.autograd.grad` also passes through outputs but accumulates nothing.
        """
        if self._round is None and self.enabled and accumulates(self._layout.parameters):
            self.arm()

    def _has_plan(self) -> bool:
        if self._layout.slots is None and self._has_changed():
            raise InvalidArgumentError(
                f"all parameters were frozen when {self.name!r} was made, and some are not now; "
                "close() it and make a new one"
            )
        return self._layout.slots is not None

    def _begin(self) -> None:
        self._layout.prepare()
        self._round = Round(self._layout, self._lock, active=True)

    def _produced(self, index: int) -> None:
        if self._round is None:
            self.arm()
        if (step := self._round) is not None:  # there is a plan
            step.produced(index)

    # -- at its end -----------------------------------------------------------------------------

    def _after_backward(self) -> None:
        for reducer in self._together() if self._round is not None else ():
            with reducer._lock:
                if reducer._round is not None:
                    reducer._finish()

    def finish_step(self) -> None:
        """Ends the round for a rank on which no hook has run since the last one (collective).

        The other ranks wait for it at the end of their backward pass.
        """
        if self._round is None and self._has_plan():
            self._begin()
            self._finish()

    @property
    def round_open(self) -> bool:
        """Whether a backward pass has begun a round and not ended it."""
        return self._round is not None

    def abandon(self) -> None:
        """Ends a round whose backward pass raised, so that the ranks stay in step (collective).

        The others, who wait for this round at the end of their backward pass, raise `HerringError`
        there. Gradients are cleared on all ranks. So it is with the rounds of other reducers that
        the same pass has begun.
        """
        if self._round is None:
            return
        for reducer in self._together():
            reducer._give_up()

    def _give_up(self) -> None:
        if self._round is not None:
            self._round.failing = True
            self._finish()

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has run out of data."""
        if self._layout.slots is not None:
            self._round = Round(self._layout, self._lock, active=False)
            self._finish()

    def _finish(self) -> None:
        step, layout = self._round, self._layout
        try:
            step.complete(self._has_changed)
        finally:
            self._round = None
            self._leave_pass()
        self.rounds += 1
        self.contributors = layout.slots.plan.contributors
        unused, flags = layout.slots.outcome()
        self.given_up = "failed" in flags
        if self.given_up:
            self._raise_failure(step)
            return
        produced = [] if layout.final else step.order()
        if flags:
            if "changed" in flags:
                produced = []
                self._generation += 1
                self._set_up(f"{self.name}.{self._generation}", layout.listed)
                layout = self._layout
            else:
                layout.deferred.update(step.again)
            # Once more, with gradients that are whole now.
            Round(layout, self._lock, active=step.active).complete()
            unused, _ = layout.slots.outcome()
        averages = self._average_sparse(active=step.active)
        if step.active:
            layout.show(unused, averages)
        if not layout.final:
            self._finalize(produced)

    def _has_changed(self) -> bool:
        """Whether there are parameters to average that this plan lacks."""
        return self._layout.lacks(None if self._relist is None else self._relist())

    def _average_sparse(self, *, active: bool) -> dict[int, torch.Tensor | None]:
        indices = sorted(self._layout.sparse)
        if not indices:
            return {}
        parameters = [self._layout.parameters[index] for index in indices]
        averages = average_sparse(
            parameters, active=active, name=f"{self.name}.sparse", group=self._group
        )
        return dict(zip(indices, averages))

    def _raise_failure(self, step: Round) -> None:
        failing = herring.allgather_object(
            step.failing, name=f"{self.name}.failed", group=self._group
        )
        for parameter in self._layout.parameters:
            parameter.grad = None
        if step.failing or not step.active:
            return
        culprits = job_ranks((rank for rank, flag in enumerate(failing) if flag), self._group)
        raise HerringError(
            f"{self.name} round {self.rounds}: {ranks_text(culprits)} did not finish the backward "
            "pass (it raised there); this step has no gradients, and they were cleared on all "
            "ranks. Look at the output of that rank; to go on, skip this step on every rank"
        )

    def _finalize(self, produced: list[int]) -> None:
        """Hands rank 0's order of production to all and makes the final plan of it."""
        layout = self._layout
        first = scope_of(self._group).rank == 0
        mine = (produced if first else [], sorted(layout.seen_sparse))
        everyone = herring.allgather_object(mine, name=f"{self.name}.order", group=self._group)
        produced = everyone[0][0]
        if not produced:
            return  # rank 0 has run out of data, or used nothing: try again in the next round
        if self._sparse == "keep":
            layout.sparse = layout.sparse.union(*(found for _, found in everyone))
        order = dict.fromkeys(produced)
        order.update(dict.fromkeys(range(len(layout.parameters) - 1, -1, -1)))
        final = [index for index in order if index not in layout.sparse]
        # In the first round .grad is memory of its own, so nothing refers to the first arena.
        slots = layout.slots
        if final != slots.order:
            slots.close()
            layout.slots = None
            name = f"{self.name}.{self._generation}" if self._generation else self.name
            slots = self._plan(layout.parameters, final, name=name)
        layout.settle(slots)

    # -- the rest -------------------------------------------------------------------------------

    def adopt(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Averages these parameters from now on (collective); they are equal on all ranks."""
        self.abandon()
        listed = list(named_parameters)
        self._known.update({id(p): p for _, p in listed})
        self._generation += 1
        self._set_up(f"{self.name}.{self._generation}", listed)

    def close(self) -> None:
        """Removes the hooks and ends the plan. `.grad` views stay readable.

        Collective where a backward pass has raised: its round is given up first.
        """
        self.abandon()
        self._layout.end(self)
        self._round = None
        self._leave_pass()
