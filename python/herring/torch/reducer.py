"""Averages gradients while the backward pass runs; the engine of both wrappers."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

import herring
from herring.arrays.arguments import shown
from herring.arrays.groups import Group, scope_of
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.agreement import describe, job_ranks, ranks_text, require_agreement
from herring.torch.ownership import Pausable, claim, collect, release, runs_last
from herring.torch.passes import EndsWithPass
from herring.torch.slots import GradientSlots
from herring.torch.sparse import average_sparse
from herring.torch.tensors import dtype_name, warn_once, wire_dtype_name

# What has become of a parameter's gradient in this round.
_MISSING, _PRODUCED, _SENT, _SENT_ZEROS = range(4)
_USED = bytes(state == _SENT for state in range(256))  # a table for bytes.translate

# Gradients are copied to their places in batches of at least this many bytes (or a fusion buffer):
# one call for many small ones, while each is still in the processor's cache.
_BATCH_BYTES = 256 << 10


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


def _plain(gradient: torch.Tensor | None) -> bool:
    """Whether an average may be written into this gradient's own memory."""
    return gradient is not None and gradient.layout == torch.strided and not gradient.requires_grad


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
        self._wire_dtype = None if wire_dtype == "float32" else wire_dtype  # as they are
        self._buffer_bytes = buffer_bytes
        self._relist = relist
        if planned is None:
            from herring.arrays.planned import PlannedReduction as planned  # noqa: N813
        self._planned = planned
        self._generation = 0
        self._lock = threading.RLock()  # gradients on several devices arrive on several threads
        self._open = False
        self._active = True
        self._failing = False
        self._parameters: list[torch.nn.Parameter] = []
        self._removals: list[Any] = []
        self._slots: GradientSlots | None = None
        self._sparse_ids = {id(parameter) for parameter in sparse_parameters}
        self._listed = list(named_parameters)
        self._known = weakref.WeakValueDictionary({id(p): p for _, p in self._listed})
        self._set_up(name)

    def _set_up(self, name: str) -> None:
        """Plans for the parameters now listed; the plan before goes (collective)."""
        names, parameters = collect(self._listed, self)
        strange = [n for n, p in zip(names, parameters) if self._known.get(id(p)) is not p]
        keep = self._sparse == "keep"
        sparse = {i for i, p in enumerate(parameters) if keep and id(p) in self._sparse_ids}
        require_agreement(
            [
                f"sync='full' wire_dtype={self._wire_dtype} buffer_bytes={self._buffer_bytes} "
                f"views={self._views} sparse={self._sparse!r}",
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
        self._let_go()
        claim(parameters, self)
        self._names, self._parameters = names, parameters
        self._mine = {id(p) for p in parameters}
        self._frozen = [p for _, p in self._listed if not p.requires_grad]
        self._dtypes = [p.dtype for p in parameters]
        self._nbytes = [p.numel() * p.element_size() for p in parameters]
        self._sparse_set = sparse  # parameters whose gradients are exchanged by rows
        self._state = bytearray(len(parameters))
        self._waiting: list[int] = []  # produced, and not yet sent
        self._waiting_bytes = 0
        self._batch_bytes = _BATCH_BYTES
        self._repeated: list[int] = []  # first round: accumulated once more
        self._again: set[int] = set()  # accumulated once more after they were sent
        self._deferred: set[int] = set()  # known to accumulate more than once
        self._seen_sparse: set[int] = set()
        self._final = False
        if parameters:
            order = [i for i in range(len(parameters) - 1, -1, -1) if i not in sparse]
            self._slots = self._plan(order, f"{name}.first")
        self._removals = self._register_hooks()

    def _plan(self, order: Sequence[int], name: str) -> GradientSlots:
        return GradientSlots(
            self._planned,
            self._parameters,
            order,
            name=name,
            wire_dtype=self._wire_dtype,
            buffer_bytes=self._buffer_bytes,
            group=self._group,
        )

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
            for index, parameter in enumerate(self._parameters)
        ]

    # -- during the backward pass ---------------------------------------------------------------

    def arm(self) -> None:
        """Starts a round that ends with the backward pass now running, if none is open yet."""
        with self._lock:
            if self._open or not self.enabled or not self._has_plan():
                return
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            self._begin(active=True)
            self._enter_pass()

    def arm_from_output(self) -> None:
        """As `arm`, from a hook on the model's output: not in passes that leave parameters alone.

        `torch.autograd.grad` also passes through outputs but accumulates nothing.
        """
        if not self._open and self.enabled and accumulates(self._parameters):
            self.arm()

    def _has_plan(self) -> bool:
        if self._slots is None and self._has_changed():
            raise InvalidArgumentError(
                f"all parameters were frozen when {self.name!r} was made, and some are not now; "
                "close() it and make a new one"
            )
        return self._slots is not None

    def _begin(self, *, active: bool) -> None:
        if active:
            self._check_dtypes()
            if self._views and self._final:
                self._leave_arena()
        state = bytearray(len(self._parameters))
        for index in self._deferred | self._sparse_set:
            state[index] = _PRODUCED  # sent at the end, whenever they are produced
        self._state = state
        self._waiting = []
        self._waiting_bytes = 0
        self._repeated = []
        self._again = set()
        self._active = active
        self._slots.plan.begin(active=active)
        self._open = True

    def _check_dtypes(self) -> None:
        if [parameter.dtype for parameter in self._parameters] == self._dtypes:
            return
        for index, parameter in enumerate(self._parameters):
            if parameter.dtype != self._dtypes[index]:
                raise InvalidArgumentError(
                    f"parameter {self._names[index]!r} was {dtype_name(self._dtypes[index])} when "
                    f"{self.name!r} was made and is {dtype_name(parameter.dtype)} now; convert the "
                    "model first"
                )

    def _leave_arena(self) -> None:
        for index in self._slots.order:
            gradient = self._parameters[index].grad
            if gradient is not None and self._slots.holds(index, gradient):
                self._parameters[index].grad = gradient.clone()

    def _produced(self, index: int) -> None:
        if not self._open:
            self.arm()
        state = self._state
        if state[index] == _MISSING:
            state[index] = _PRODUCED
            self._waiting.append(index)
            self._waiting_bytes += self._nbytes[index]
            # A user's hook that comes after ours may still change or replace the gradient, which is
            # then taken at the end of the pass; from the next pass on ours comes after it.
            if (
                self._waiting_bytes >= self._batch_bytes
                and self._final
                and runs_last(self._parameters[index], self._removals[index])
            ):
                self._send_batch()
        elif state[index] == _SENT:
            self._again.add(index)
        elif not self._final:
            self._repeated.append(index)

    def _send_batch(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            self._send(batch)

    def _send(self, indices: Sequence[int], *, last: bool = False) -> None:
        """Puts gradients in their places and reports them; one that is None only at the `last`."""
        chosen: list[int] = []
        gradients: list[torch.Tensor | None] = []
        for index in indices:
            gradient = self._parameters[index].grad
            if gradient is None:
                if not last:
                    continue  # a hook of the user's has taken it away
            elif gradient.layout != torch.strided:
                gradient = self._dense(index, gradient)
            chosen.append(index)
            gradients.append(gradient)
        self._slots.fill(chosen, gradients)
        self._slots.ready(chosen)
        state = self._state
        for index, gradient in zip(chosen, gradients):
            state[index] = _SENT_ZEROS if gradient is None else _SENT

    def _dense(self, index: int, gradient: torch.Tensor) -> torch.Tensor:
        if self._sparse == "error":
            raise InvalidArgumentError(
                f"parameter {self._names[index]!r} has a sparse gradient, and sparse='error' was "
                "asked for; build its module with sparse=False, or pass sparse='keep' or 'densify'"
            )
        if self._sparse == "densify":
            warn_once(
                "sparse",
                "herring.torch: sparse gradients are made dense before they are averaged, as "
                f"sparse='densify' asks for (first seen in {self._names[index]!r})",
            )
        self._seen_sparse.add(index)
        return gradient.to_dense()

    # -- at its end -----------------------------------------------------------------------------

    def _after_backward(self) -> None:
        if not self._open:
            return
        for reducer in self._together():
            with reducer._lock:
                if reducer._open:
                    reducer._finish()

    def finish_step(self) -> None:
        """Ends the round for a rank on which no hook has run since the last one (collective).

        The other ranks wait for it at the end of their backward pass.
        """
        if not self._open and self._has_plan():
            self._begin(active=True)
            self._finish()

    @property
    def round_open(self) -> bool:
        """Whether a backward pass has begun a round and not ended it."""
        return self._open

    def abandon(self) -> None:
        """Ends a round whose backward pass raised, so that the ranks stay in step (collective).

        The others, who wait for this round at the end of their backward pass, raise `HerringError`
        there. Gradients are cleared on all ranks. So it is with the rounds of other reducers that
        the same pass has begun.
        """
        if not self._open:
            return
        for reducer in self._together():
            reducer._give_up()

    def _give_up(self) -> None:
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
        try:
            if self._active:
                if self._failing:
                    self._slots.ready([i for i in self._slots.order if self._state[i] < _SENT])
                else:
                    self._send_rest()
                self._slots.report(
                    self._state.translate(_USED),
                    again=bool(self._again),
                    changed=not self._failing and self._has_changed(),
                    failed=self._failing,
                )
            self._slots.plan.wait()
        finally:
            self._open = False
            self._leave_pass()
        self.rounds += 1
        self.contributors = self._slots.plan.contributors
        unused, flags = self._slots.outcome()
        self.given_up = "failed" in flags
        if self.given_up:
            self._raise_failure()
            return
        if not self._final:
            produced = dict.fromkeys(self._waiting)
            repeated = [i for i in self._repeated if i not in self._sparse_set]
            for index in repeated:
                produced.pop(index, None)
                produced[index] = None
            self._deferred.update(repeated)
        else:
            produced = {}
        if flags:
            if "changed" in flags:
                produced = {}
                self._generation += 1
                self._set_up(f"{self.name}.{self._generation}")
            unused = self._repeat()
        averages = self._average_sparse()
        if self._active:
            self._show(unused, averages)
        if not self._final:
            self._finalize(list(produced))

    def _send_rest(self) -> None:
        state = self._state
        self._send([i for i in self._slots.order if state[i] < _SENT], last=True)
        for index in self._sparse_set:
            used = self._parameters[index].grad is not None
            state[index] = _SENT if used else _SENT_ZEROS

    def _has_changed(self) -> bool:
        """Whether there are parameters to average that this plan lacks."""
        listed = None if self._relist is None else self._relist()
        if listed is None:
            return any(p.requires_grad and p.numel() for p in self._frozen)
        self._listed = listed
        self._frozen = [p for _, p in listed if id(p) not in self._mine]
        return any(p.requires_grad and p.numel() for p in self._frozen)

    def _repeat(self) -> set[int]:
        """The round once more, with gradients that are whole now; who has used none of them."""
        self._deferred.update(self._again)
        self._state = bytearray(len(self._parameters))
        self._slots.plan.begin(active=self._active)
        if self._active:
            self._send_rest()
            self._slots.report(self._state.translate(_USED))
        self._slots.plan.wait()
        return self._slots.outcome()[0]

    def _average_sparse(self) -> dict[int, torch.Tensor | None]:
        indices = sorted(self._sparse_set)
        if not indices:
            return {}
        parameters = [self._parameters[index] for index in indices]
        averages = average_sparse(
            parameters, active=self._active, name=f"{self.name}.sparse", group=self._group
        )
        return dict(zip(indices, averages))

    def _show(self, unused: set[int], averages: dict[int, torch.Tensor | None]) -> None:
        """Makes `.grad` of all parameters the averages."""
        slots = self._slots
        gradients = [parameter.grad for parameter in self._parameters]
        if not (unused or averages or self._views) and all(map(_plain, gradients)):
            with torch.no_grad():
                torch._foreach_copy_(gradients, slots.views)
            return
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        for index, parameter in enumerate(self._parameters):
            gradient = gradients[index]
            if index in averages:
                parameter.grad = averages[index]
            elif index in unused:
                parameter.grad = None
            elif self._views and self._final and slots.reaches(parameter):
                parameter.grad = slots.alias(index)
            elif _plain(gradient):
                targets.append(gradient)
                sources.append(slots.views[index])
            else:
                average = slots.views[index].to(parameter.device, copy=True)
                if gradient is not None and gradient.is_sparse and self._sparse == "keep":
                    average = average.to_sparse(gradient.sparse_dim())
                parameter.grad = average
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

    def _raise_failure(self) -> None:
        failing = herring.allgather_object(
            self._failing, name=f"{self.name}.failed", group=self._group
        )
        for parameter in self._parameters:
            parameter.grad = None
        if self._failing or not self._active:
            return
        culprits = job_ranks((rank for rank, flag in enumerate(failing) if flag), self._group)
        raise HerringError(
            f"{self.name} round {self.rounds}: {ranks_text(culprits)} did not finish the backward "
            "pass (it raised there); this step has no gradients, and they were cleared on all "
            "ranks. Look at the output of that rank; to go on, skip this step on every rank"
        )

    def _finalize(self, produced: list[int]) -> None:
        """Hands rank 0's order of production to all and makes the final plan of it."""
        first = scope_of(self._group).rank == 0
        mine = (produced if first else [], sorted(self._seen_sparse))
        everyone = herring.allgather_object(mine, name=f"{self.name}.order", group=self._group)
        produced = everyone[0][0]
        if not produced:
            return  # rank 0 has run out of data, or used nothing: try again in the next round
        if self._sparse == "keep":
            self._sparse_set = self._sparse_set.union(*(found for _, found in everyone))
        order = dict.fromkeys(produced)
        order.update(dict.fromkeys(range(len(self._parameters) - 1, -1, -1)))
        final = [index for index in order if index not in self._sparse_set]
        # In the first round .grad is memory of its own, so nothing refers to the first arena.
        if final != self._slots.order:
            self._slots.close()
            self._slots = None
            name = f"{self.name}.{self._generation}" if self._generation else self.name
            self._slots = self._plan(final, name)
        self._batch_bytes = min([_BATCH_BYTES, *(size for _, _, size in self._slots.plan.buffers)])
        self._final = True

    # -- the rest -------------------------------------------------------------------------------

    def adopt(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Averages these parameters from now on (collective); they are equal on all ranks."""
        self.abandon()
        self._listed = list(named_parameters)
        self._known.update({id(p): p for _, p in self._listed})
        self._generation += 1
        self._set_up(f"{self.name}.{self._generation}")

    def _let_go(self) -> None:
        for handle in self._removals:
            handle.remove()
        self._removals = []
        release(self._parameters, self)
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def close(self) -> None:
        """Removes the hooks and ends the plan. `.grad` views stay readable.

        Collective where a backward pass has raised: its round is given up first.
        """
        self.abandon()
        self._let_go()
        self._open = False
        self._leave_pass()
