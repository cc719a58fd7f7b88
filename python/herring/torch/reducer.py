"""Averages gradients while the backward pass runs; the engine of both wrappers."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

import herring
from herring.arrays.agreement import job_ranks, ranks_text, require_agreement
from herring.arrays.arguments import count_of, text_of
from herring.arrays.groups import Group, scope_of
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.layout import Layout, Options
from herring.torch.ownership import Pausable, claim, collect, release
from herring.torch.passes import EndsWithPass, accumulates
from herring.torch.round import Round
from herring.torch.sparse import average_sparse
from herring.torch.tensors import describe, wire_dtype_name


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

    With the gradients travels the round's note: which parameters a rank has used, and what has
    happened to it. While a round is open no `.grad` lies in the arena. So a gradient that is
    accumulated again after it was sent (reentrant checkpoints, shared parameters across nested
    passes) is whole at the end of the pass. Its rank says so in the note, and all repeat the round.
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
          group: whose workers' gradients are averaged; None: of all. "Ranks" and "all" are its.

        Raises:
          InvalidArgumentError: a dtype that cannot be averaged, an unknown option, or a parameter
            that another reducer averages already.
          MismatchError: the parameters differ between ranks.
        """
        text_of(sparse, "sparse", ("keep", "densify", "error"))
        count_of(buffer_bytes, "buffer_bytes")
        super().__init__(name, group)
        self.name = name
        self.rounds = 0
        self.given_up = False
        self.contributors = 0
        wire = wire_dtype_name(wire_dtype)
        wire = None if wire == "float32" else wire  # as they are
        self._options = Options(name, wire, buffer_bytes, sparse, views, group)
        self._relist = relist
        self._generation = 0
        self._lock = threading.RLock()  # gradients on several devices arrive on several threads
        self._layout: Layout | None = None  # None: all parameters are frozen
        self._round: Round | None = None  # the one that a backward pass has begun
        self._sparse_ids = {id(p) for p in sparse_parameters if sparse == "keep"}
        self._listed = list(named_parameters)
        self._known = weakref.WeakValueDictionary({id(p): p for _, p in self._listed})
        self._set_up(name)

    def _set_up(self, name: str) -> None:
        """Plans for the parameters now listed; the plan before goes (collective)."""
        options = self._options
        names, parameters = collect(self._listed, self)
        strange = [n for n, p in zip(names, parameters) if self._known.get(id(p)) is not p]
        sparse = {i for i, p in enumerate(parameters) if id(p) in self._sparse_ids}
        require_agreement(
            [
                f"sync='full' wire_dtype={options.wire_dtype} buffer_bytes={options.buffer_bytes} "
                f"views={options.views} sparse={options.sparse!r}",
                *(
                    describe(n, p) + (" with sparse gradients" if i in sparse else "")
                    for i, (n, p) in enumerate(zip(names, parameters))
                ),
                f"put in after {self.name} was made: {', '.join(strange)}",
            ],
            what="entry",
            name=f"{name}.parameters",
            group=options.group,
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
        self._mine = {id(parameter) for parameter in parameters}
        if parameters:
            order = [i for i in range(len(parameters) - 1, -1, -1) if i not in sparse]
            self._layout = Layout(options, names, parameters, sparse, order, name=f"{name}.first")
            self._layout.hooks = [self._hook(i, p) for i, p in enumerate(parameters)]
        self._note_frozen()

    def _note_frozen(self) -> None:
        """Finds the listed parameters that the plan lacks; they may be unfrozen at any time."""
        self._frozen = [p for _, p in self._listed if id(p) not in self._mine and p.numel()]

    def _hook(self, index: int, parameter: torch.nn.Parameter) -> Any:
        myself = weakref.ref(self)  # weak: the garbage collector does not see the engine's hooks

        def hook(_parameter: torch.Tensor) -> None:
            if (reducer := myself()) is not None and reducer.enabled:
                if reducer._round is None:
                    reducer.arm()
                reducer._round.produced(index)

        return parameter.register_post_accumulate_grad_hook(hook)

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those whose gradients are averaged, in registration order."""
        return () if self._layout is None else self._layout.parameters

    # -- during the backward pass ---------------------------------------------------------------

    def arm(self) -> None:
        """Starts a round that ends with the backward pass now running, if none is open yet."""
        with self._lock:
            if self.round_open or not self.enabled or not self._has_plan():
                return
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
            self._begin()
            self._enter_pass()

    def arm_from_output(self) -> None:
        """As `arm`, from a hook on the model's output: not in passes that leave parameters alone.

        `torch.autograd.grad` also passes through outputs but accumulates nothing.
        """
        if not self.round_open and self.enabled and accumulates(self.parameters):
            self.arm()

    def _has_plan(self) -> bool:
        if self._layout is None and self._has_changed():
            raise InvalidArgumentError(
                f"all parameters were frozen when {self.name!r} was made, and some are not now; "
                "close() it and make a new one"
            )
        return self._layout is not None

    def _has_changed(self) -> bool:
        """Whether there are parameters to average that this plan lacks."""
        listed = None if self._relist is None else self._relist()
        if listed is not None:
            self._listed = listed
            self._note_frozen()
        return any(p.requires_grad for p in self._frozen)

    def _begin(self) -> None:
        refusal = None
        try:
            self._layout.prepare()
        except InvalidArgumentError as error:
            refusal = error  # raised at the end of the round, where the other ranks hear of it
        self._round = Round(self._layout, active=True, refusal=refusal)

    # -- at its end -----------------------------------------------------------------------------

    def _after_backward(self) -> None:
        if not self.round_open:
            return
        for reducer in self._together():
            with reducer._lock:
                if reducer.round_open:
                    reducer._finish()

    def finish_step(self) -> None:
        """Ends the round for a rank on which no hook has run since the last one (collective).

        The other ranks wait for it at the end of their backward pass.
        """
        if not self.round_open and self._has_plan():
            self._begin()
            self._finish()

    @property
    def round_open(self) -> bool:
        """Whether a backward pass has begun a round and not ended it."""
        return self._round is not None

    def abandon(self, stacklevel: int = 0) -> None:
        """Ends a round whose backward pass raised, so that the ranks stay in step (collective).

        The others, who wait for this round at the end of their backward pass, raise `HerringError`
        there. Gradients are cleared on all ranks. So it is with the rounds of other reducers that
        the same pass has begun.

        Args:
          stacklevel: of the warning; 0: there is none.
        """
        if not self.round_open:
            return
        if stacklevel:
            warnings.warn(
                f"{self.name}: the last backward pass raised an error; its step is given up on all "
                "ranks, and gradients are cleared",
                stacklevel=stacklevel + 1,
            )
        for reducer in self._together():
            if reducer.round_open:
                reducer._round.failing = True
                reducer._finish()

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has run out of data."""
        if self._layout is not None:
            self._round = Round(self._layout, active=False)
            self._finish()

    def _finish(self) -> None:
        ended, layout = self._round, self._layout
        try:
            changed = ended.active and not ended.failing and self._has_changed()
            unused, flags = ended.finish(changed=changed)
        finally:
            self._round = None
            self._leave_pass()
        self.rounds += 1
        self.contributors = layout.plan.contributors
        self.given_up = "failed" in flags
        if self.given_up:
            self._raise_failure(ended)
            return
        produced = [] if layout.final else ended.learn_order()
        if "changed" in flags:
            produced = []
            self._generation += 1
            self._set_up(f"{self.name}.{self._generation}")
        if flags:  # once more, with gradients that are whole now
            unused, _ = Round(self._layout, ended.active).finish()
        layout = self._layout
        averages = {}
        if sparse := sorted(layout.sparse):
            found = average_sparse(
                [layout.parameters[index] for index in sparse],
                active=ended.active,
                name=f"{self.name}.sparse",
                group=self._options.group,
            )
            averages = dict(zip(sparse, found))
        if ended.active:
            layout.show(unused, averages)
        if not layout.final:
            self._finalize(produced)

    def _raise_failure(self, ended: Round) -> None:
        group = self._options.group
        mine = ended.failing, str(ended.refusal or "")
        told = herring.allgather_object(mine, name=f"{self.name}.failed", group=group)
        for parameter in self.parameters:
            parameter.grad = None
        if ended.refusal is not None:
            raise ended.refusal
        if ended.failing or not ended.active:
            return
        refused = [(rank, why) for rank, (_, why) in enumerate(told) if why]
        if refused:
            who = ranks_text(job_ranks((rank for rank, _ in refused), group))
            raise InvalidArgumentError(
                f"{self.name} round {self.rounds}: {who} refused it: {refused[0][1]}. This step "
                "has no gradients, and they were cleared on all ranks"
            )
        culprits = job_ranks((rank for rank, (flag, _) in enumerate(told) if flag), group)
        raise HerringError(
            f"{self.name} round {self.rounds}: {ranks_text(culprits)} did not finish the backward "
            "pass (it raised there); this step has no gradients, and they were cleared on all "
            "ranks. Look at the output of that rank; to go on, skip this step on every rank"
        )

    def _finalize(self, produced: list[int]) -> None:
        """Hands rank 0's order of production to all and makes the final plan of it."""
        layout, group = self._layout, self._options.group
        mine = (produced if scope_of(group).rank == 0 else [], sorted(layout.found))
        everyone = herring.allgather_object(mine, name=f"{self.name}.order", group=group)
        produced = everyone[0][0]
        if not produced:
            return  # rank 0 has run out of data, or used nothing: try again in the next round
        sparse = layout.sparse
        if self._options.sparse == "keep":
            sparse = sparse.union(*(found for _, found in everyone))
        name = f"{self.name}.{self._generation}" if self._generation else self.name
        self._layout = layout.in_order(produced, sparse, name)

    # -- the rest -------------------------------------------------------------------------------

    def adopt(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Averages these parameters from now on (collective); they are equal on all ranks."""
        self.abandon()
        self._listed = list(named_parameters)
        self._known.update({id(p): p for _, p in self._listed})
        self._generation += 1
        self._set_up(f"{self.name}.{self._generation}")

    def _let_go(self) -> None:
        if (layout := self._layout) is None:
            return
        for handle in layout.hooks:
            handle.remove()
        release(layout.parameters, self)
        layout.close()
        self._layout = None

    def close(self) -> None:
        """Removes the hooks and ends the plan. `.grad` views stay readable.

        Collective where a backward pass has raised: its round is given up first.
        """
        self.abandon()
        self._let_go()
        self._round = None
        self._leave_pass()
