"""Averages gradients during the backward pass; both wrappers are built on it."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from herring.arrays.agreement import job_ranks, require_agreement
from herring.arrays.arguments import boolean_of, count_of, text_of
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain
from herring.base.units import ranks_text
from herring.errors import HerringError, InvalidArgumentError, MismatchError
from herring.torch.engine import accumulates, at_end_of_pass
from herring.torch.layout import STEPS_INSIDE, Layout, Options
from herring.torch.ownership import Pausable, claim, collect, release
from herring.torch.passes import EndsWithPass
from herring.torch.ranges import work_range
from herring.torch.sparse import average_sparse
from herring.torch.steps import Stepped
from herring.torch.tensors import TorchWireDType, describe, wire_dtype_name

# Returns the present list of named parameters if it may have changed since the last call.
Relist = Callable[[], "list[tuple[str, torch.nn.Parameter]] | None"]


class Listing(Pausable):
    """A reducer's list of parameters, of which frozen ones may require gradients later."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        relist: Relist | None = None,
        sparse_ids: Collection[int] = (),
    ) -> None:
        """Takes a first list; `sparse_ids` are the ids of parameters with sparse gradients."""
        self.name = name
        self._relist = relist
        self._sparse_ids = set(sparse_ids)
        self._listed = list(named_parameters)
        self._known = weakref.WeakValueDictionary({id(p): p for _, p in self._listed})
        self._mine: set[int] = set()
        self._note_frozen()

    def _agree(
        self, options: str, name: str, group: Group | None
    ) -> tuple[list[str], list[torch.nn.Parameter]]:
        """Returns the parameters to be averaged in the group now, with their names (collective)."""
        names, parameters = collect(self._listed, self)
        strange = self._strange(names, parameters)
        require_agreement(
            [
                options,
                *(
                    describe(n, p) + (" with sparse gradients" if id(p) in self._sparse_ids else "")
                    for n, p in zip(names, parameters)
                ),
                f"added after {self.name} was made: {', '.join(strange)}",
            ],
            what="entry",
            name=f"{name}.parameters",
            group=group,
        )
        self._refuse(strange)
        return names, parameters

    def _strange(self, names: Iterable[str], parameters: Iterable[torch.nn.Parameter]) -> list[str]:
        return [n for n, p in zip(names, parameters) if self._known.get(id(p)) is not p]

    def _refuse(self, strange: list[str]) -> None:
        """Raises InvalidArgumentError if there are such parameters."""
        if strange:
            raise InvalidArgumentError(
                f"{self.name}: parameter {strange[0]!r} "
                + (f"and {len(strange) - 1} more were" if len(strange) > 1 else "was")
                + " added after it was made, so the ranks may hold different values; after "
                "replacing parts of a model close() the wrapper and make a new one"
            )

    def _take_over(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        claim(parameters, self)
        self._mine = {id(parameter) for parameter in parameters}
        self._note_frozen()

    def _note_frozen(self) -> None:
        """Finds the listed parameters that the plan lacks; they may be unfrozen at any time."""
        self._frozen = [p for _, p in self._listed if id(p) not in self._mine and p.numel()]

    def _has_changed(self) -> bool:
        """Returns whether there are parameters to average that this plan lacks."""
        listed = None if self._relist is None else self._relist()
        if listed is not None:
            self._listed = listed
            self._note_frozen()
        return any(p.requires_grad for p in self._frozen)


class GradientReducer(Listing, EndsWithPass, Stepped):
    """Averages the gradients of a list of parameters over all ranks, round by round.

    A hook on each parameter notices that its gradient is ready. Gradients are copied in batches to
    their places in the arena and marked ready. At the end of the backward pass the rest of the
    round is added, and the pass returns when everything is averaged. A rank contributes a
    parameter's `.grad` at that moment; None counts as zeros. If `.grad` is None on every rank, it
    stays None. The averages are copied to `.grad`, so that a later round never writes to gradients
    that the user keeps; with `views`, `.grad` becomes a view of the arena instead.

    The first round uses reverse registration order and starts after the pass. Meanwhile rank 0
    records the order in which gradients are produced. All ranks use this order in the final plan.

    A round's note travels with the gradients. It says which parameters a rank has used, and what
    has happened to the rank. While a round is open no `.grad` is in the arena. A gradient may
    therefore accumulate again after it was sent (reentrant checkpoints, parameters shared across
    nested passes) and is whole at the end of the pass. The rank says so in its note, and all ranks
    repeat the round. From then on this rank sends that parameter's gradient only at the end. A rank
    also says in its note that it has more parameters to average than the plan, because some are no
    longer frozen. All ranks then make a new plan and repeat the round.

    All gradients of a round belong to the same step of the optimizer (`steps.py`): a rank without
    gradients contributes zeros, and if ranks have made different numbers of steps, all raise.

    Attributes:
      name: The reducer's name.
      rounds: The number of rounds finished.
      given_up: Whether the last round was given up because a backward pass raised.
      contributors: The number of workers in the last round's average.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        name: str,
        wire_dtype: TorchWireDType | None = None,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        views: bool = False,
        sparse_parameters: Collection[torch.nn.Parameter] = (),
        relist: Relist | None = None,
        group: Group | None = None,
        missing: str | None = None,
        before_forward: weakref.WeakMethod[Callable[[], None]] | None = None,
        divide_by_all: bool = False,
        error_feedback: bool = True,
    ) -> None:
        """Checks the parameters, compares them across ranks and plans (collective).

        Args:
          named_parameters: Names and parameters in registration order. Empty and repeated ones are
            left out, and frozen ones are left out until they require gradients.
          name: The reducer's name, the same on every rank and different for each reducer.
          wire_dtype: What gradients are sent in (`herring.torch.DistributedDataParallel`); None
            sends them unchanged.
          buffer_bytes: The size of a fusion buffer in bytes; 0 lets the plan choose.
          sparse: "keep" exchanges the rows of sparse gradients. "densify" makes them dense, with
            one warning. "error" refuses them.
          views: Whether averages stay in the arena, and `.grad` becomes a view of it.
          sparse_parameters: Parameters known to have sparse gradients. With "keep", others are
            found in the first round.
          relist: A function called at the end of each backward pass. It returns the present list of
            named parameters if the list may have changed since the last call, else None.
          group: The group whose gradients are averaged; None means all workers. "Ranks" and "all"
            mean the group's ranks.
          missing: What shows that this rank has no gradients in a step (`Stepped`).
          before_forward: What the wrapper does before a forward pass, with the other ranks.
          divide_by_all: Whether averages divide by the number of all ranks, also in rounds to which
            some do not contribute.
          error_feedback: Whether what rounding to 8 bits loses is added to the next gradients.

        Raises:
          InvalidArgumentError: A dtype cannot be averaged, an option is unknown, or another reducer
            already averages a parameter.
          MismatchError: The parameters differ between ranks.
        """
        text_of(sparse, "sparse", ("keep", "densify", "error"))
        count_of(buffer_bytes, "buffer_bytes")
        EndsWithPass.__init__(self, name, group)
        sparse_ids = {id(p) for p in sparse_parameters if sparse == "keep"}
        Listing.__init__(self, named_parameters, name=name, relist=relist, sparse_ids=sparse_ids)
        self.rounds = 0
        self.given_up = False
        self.contributors = 0
        self._before_forward = before_forward
        wire = wire_dtype_name(wire_dtype)
        wire = None if wire == "float32" else wire  # float32 means unchanged
        error_feedback = boolean_of(error_feedback, "error_feedback")
        self._options = Options(
            name, wire, buffer_bytes, sparse, views, group, divide_by_all, error_feedback
        )
        self._generation = 0
        self._lock = threading.RLock()  # gradients on several devices arrive on several threads
        self._layout: Layout | None = None  # None: all parameters are frozen
        self._open = False  # whether a backward pass has begun a round
        self._set_up(name)
        Stepped.__init__(self, missing)

    def _set_up(self, name: str) -> None:
        """Plans for the parameters that are listed now and drops the old plan (collective)."""
        options = self._options
        names, parameters = self._agree(
            f"sync='full' wire_dtype={options.wire_dtype} buffer_bytes={options.buffer_bytes} "
            f"views={options.views} sparse={options.sparse!r}",
            name,
            options.group,
        )
        lost = {}
        if self._layout is not None:
            before, kept = self._layout.parameters, self._layout.movable_residuals(name)
            lost = {id(before[i]): value for i, value in kept.items()}
        self._let_go()
        self._take_over(parameters)
        if parameters:
            sparse = {i for i, p in enumerate(parameters) if id(p) in self._sparse_ids}
            order = [i for i in range(len(parameters) - 1, -1, -1) if i not in sparse]
            self._layout = Layout(options, names, parameters, sparse, order, name=f"{name}.first")
            self._layout.hooks = [self._hook(i, p) for i, p in enumerate(parameters)]
            self._layout.give_residuals(
                {i: lost[id(parameters[i])] for i in order if id(parameters[i]) in lost}
            )

    def resting_layout(self, call: str) -> Layout | None:
        """Returns the layout between two steps, None if all parameters are frozen.

        Raises:
          InvalidArgumentError: A step is not complete; the message names `call`.
        """
        if self._open:
            raise InvalidArgumentError(
                f"{self.name}: {call} inside a step; call it after the optimizer's step"
            )
        return self._layout

    def _hook(self, index: int, parameter: torch.nn.Parameter) -> Any:
        myself = weakref.ref(self)  # the garbage collector does not see the engine's hooks

        def hook(_parameter: torch.Tensor) -> None:
            if (reducer := myself()) is None:
                return
            if not reducer.enabled:
                reducer._passes_by()
                return
            if not reducer._open:
                reducer.arm()
            reducer._planned.produced(index)

        return parameter.register_post_accumulate_grad_hook(hook)

    @property
    def _planned(self) -> Layout:
        """The layout of a reducer that has one."""
        assert self._layout is not None
        return self._layout

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """The parameters whose gradients are averaged, in registration order."""
        return () if self._layout is None else self._layout.parameters

    # -- during the backward pass ---------------------------------------------------------------

    def arm(self) -> None:
        """Starts a round that ends with the backward pass now running, if none is open yet."""
        with self._lock:
            if self.round_open or not self.enabled or not self._has_plan():
                return
            at_end_of_pass(self._after_backward)
            self._begins_in_pass()
            self._begin()
            self._enter_pass()

    def arm_from_output(self) -> None:
        """Starts a round from a hook on the model's output, if the pass adds to parameters.

        `torch.autograd.grad` also passes through outputs but accumulates nothing.
        """
        if not self.round_open and self.enabled and accumulates(self.parameters):
            self.arm()

    def _has_plan(self) -> bool:
        if self._layout is None and self._has_changed():
            raise InvalidArgumentError(
                f"all parameters were frozen when {self.name!r} was made, but some are not now; "
                "close() it and make a new one"
            )
        return self._layout is not None

    def _begin(self, without: str = "") -> None:
        refusal = None
        try:
            self._planned.prepare()
        except InvalidArgumentError as error:
            refusal = error  # raised at the end of the round, where the other ranks hear of it
        self._planned.begin(active=True, steps=self.steps, without=without, refusal=refusal)
        self._open = True

    def refuse_step(self) -> None:
        """Fails the round of the running pass, because an optimizer is about to step inside it.

        Raises:
          InvalidArgumentError: Always, unless the pass is in `no_sync`.
        """
        if self.enabled:
            self.arm()
            self._planned.refuse(
                InvalidArgumentError(
                    f"{self.name}: an optimizer makes a step inside the backward pass. "
                    + STEPS_INSIDE
                )
            )
            self.abandon()

    # -- at the end of the backward pass --------------------------------------------------------

    def _after_backward(self) -> None:
        if not self.round_open:
            return
        for reducer in self._together():
            with reducer._lock:
                if reducer.round_open:
                    reducer._finish()

    def finish_step(self, *, without: str = "pass") -> None:
        """Ends the round for a rank on which no hook has run since the last one (collective).

        The other ranks wait for this rank at the end of their backward pass.

        Args:
          without: "step" if the optimizer is making its step. The other ranks may then have
            changed their gradients already, so `even_out` follows on all ranks.
        """
        if not self.round_open and self._has_plan():
            self._begin(without)
            self._finish()

    def before_forward(self) -> None:
        """Does what the wrapper does before a forward pass, which this rank has not made."""
        call = self._before_forward and self._before_forward()
        if call is not None:
            with torch.enable_grad():
                call()

    @property
    def round_open(self) -> bool:
        """Returns whether a backward pass has begun a round and not ended it."""
        return self._open

    def abandon(self, stacklevel: int = 0) -> None:
        """Ends a round whose backward pass raised, so that the ranks stay in step (collective).

        The other ranks wait for this round at the end of their backward pass and raise
        `HerringError` there. Gradients are cleared on all ranks. Rounds of other reducers that the
        same pass has begun end in the same way.

        Args:
          stacklevel: The stack level of the warning; 0 means no warning.
        """
        if not self.round_open:
            return
        if stacklevel:
            why = "raised an error; its step was given up on all ranks"
            if self._planned.told:
                why = "was interrupted while it waited; other ranks have its averages"
            warnings.warn(
                f"{self.name}: the last backward pass {why}, and gradients were cleared",
                stacklevel=stacklevel + 1,
            )
        refusal = None
        for reducer in self._together():
            if reducer.round_open:
                reducer._planned.failing = True
                try:
                    reducer._finish()
                except InvalidArgumentError as error:
                    refusal = refusal or error
                for parameter in reducer.parameters:
                    parameter.grad = None
        if refusal is not None:
            raise refusal

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has no more data."""
        if self._layout is not None:
            self._layout.begin(active=False, steps=self.steps)
            self._open = True
            self._finish()
            self.even_out(active=False)

    def _finish(self) -> None:
        with work_range("round", self.name):
            self._end_round()

    def _end_round(self) -> None:
        layout = self._planned
        active, without = layout.active, layout.without
        ended = True
        try:
            changed = active and not layout.failing and self._has_changed()
            unused, flags = layout.finish(changed=changed)
        except KeyboardInterrupt:
            ended = not layout.told  # the others go on, so `abandon` goes on waiting
            raise
        finally:
            if ended:
                self._open = False
                self._leave_pass()
        self.rounds += 1
        self.contributors = layout.plan.contributors
        if flags - {"without"}:
            layout.plan.take_back()
        self.given_up = "failed" in flags
        if self.given_up:
            self._raise_failure(layout)
            return
        if "steps" in flags:
            self._raise_steps(layout)
            return
        produced = [] if layout.final else layout.learn_order()
        if "changed" in flags:
            produced = []
            self._generation += 1
            self._set_up(f"{self.name}.{self._generation}")
        if flags - {"without"}:  # repeats the round with whole gradients
            self._planned.begin(active, steps=self.steps)
            unused, _ = self._planned.finish()
        layout = self._planned
        averages = {}
        if sparse := sorted(layout.sparse):
            found = average_sparse(
                [layout.parameters[index] for index in sparse],
                active=active,
                name=f"{self.name}.sparse",
                group=self._options.group,
                divide_by_all=self._options.divide_by_all,
            )
            averages = dict(zip(sparse, found))
        if active:
            layout.show(unused, averages)
        if not layout.final:
            self._finalize(produced)
        told = None
        if "without" in flags:
            mine = (without, self._rest_of_pass()) if active else None
            told = allgather_plain(mine, name=f"{self.name}.without", group=self._options.group)
        used = [index for index in range(len(layout.parameters)) if index not in unused]
        self._round_ended(told, used, without)

    def _scope(self) -> Group | None:
        return self._options.group

    def _sparse(self) -> set[int]:
        return set() if self._layout is None else self._layout.sparse

    def _raise_steps(self, ended: Layout) -> None:
        group = self._options.group
        mine = ended.steps if ended.active else None
        told = allgather_plain(mine, name=f"{self.name}.steps", group=group)
        for parameter in self.parameters:
            parameter.grad = None
        if not ended.active:
            return
        holders: dict[int, list[int]] = {}
        for rank, steps in zip(job_ranks(range(len(told)), group), told):
            if steps is not None:
                holders.setdefault(steps, []).append(rank)
        counts = "; ".join(
            f"{ranks_text(ranks)}: {steps}" for steps, ranks in sorted(holders.items())
        )
        raise MismatchError(
            f"{self.name} round {self.rounds}: ranks have made different numbers of steps of the "
            f"optimizer ({counts}), so their gradients belong to different steps. They were "
            "cleared on all ranks. Make the same steps on every rank, each after a backward pass; "
            "to go on here, close() the wrapper and wrap the model again, which makes ranks equal"
        )

    def _raise_failure(self, ended: Layout) -> None:
        group = self._options.group
        mine = ended.failing, str(ended.refusal or "")
        told = allgather_plain(mine, name=f"{self.name}.failed", group=group)
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
        """Hands rank 0's order of production to all ranks and makes the final plan with it."""
        layout, group = self._planned, self._options.group
        mine = (produced if scope_of(group).rank == 0 else [], sorted(layout.found))
        everyone = allgather_plain(mine, name=f"{self.name}.order", group=group)
        produced = everyone[0][0]
        if not produced:
            return  # rank 0 had no data or used no parameter; the next round tries again
        sparse = layout.sparse
        if self._options.sparse == "keep":
            sparse = sparse.union(*(found for _, found in everyone))
        name = f"{self.name}.{self._generation}" if self._generation else self.name
        self._layout = layout.in_order(produced, sparse, name)

    # -- the rest -------------------------------------------------------------------------------

    def adopt(self, named_parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        """Averages these parameters from now on (collective); they are equal on all ranks.

        Args:
          named_parameters: Names and parameters in registration order.
        """
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
        self._mine = set()

    def retire(self) -> None:
        """Removes the hooks after the job has ended; no other rank takes part."""
        self._open = False
        self._leave_pass()
        self._let_go()

    def close(self) -> None:
        """Removes the hooks and ends the plan; views of the arena in `.grad` stay readable.

        If a backward pass has raised, its round is given up first, and the call is collective.
        """
        self.abandon()
        self._let_go()
        self._open = False
        self._leave_pass()
