"""Training in which ranks meet seldom: DiLoCo, streaming DiLoCo and local SGD.

Each rank trains its own copy of the model with an inner optimizer. After many steps the ranks meet:
they average how far they have come, and an outer optimizer takes that as a gradient (Douillard et
al. 2023, arXiv 2311.08105, algorithm 1). Fragments of the model may meet one after the other while
the ranks train on (Douillard et al. 2025, arXiv 2501.18512, algorithm 2). docs/how-to/diloco.md
has more.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.arguments import boolean_of, count_of, function_of, number_of, shown
from herring.arrays.calls import called
from herring.arrays.calls import named as named_call
from herring.arrays.groups import Group
from herring.arrays.objects import allgather_plain
from herring.arrays.runtime import is_running, job
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.ddp import DistributedDataParallel
from herring.torch.fragments import Fragment, MakeOptimizer, Share, split
from herring.torch.functions import allreduce
from herring.torch.join import Join
from herring.torch.optimizer import DistributedOptimizer
from herring.torch.ownership import require_float
from herring.torch.ranges import work_range
from herring.torch.saved_meetings import SavesMeetings
from herring.torch.state import broadcast_tensors
from herring.torch.tensors import TorchWireDType, describe, require_writable, wire_dtype_name


def _sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class DiLoCo(SavesMeetings):
    """Lets ranks train alone, and meet after every so many steps of the inner optimizer.

        with herring.torch.DiLoCo(model, optimizer, every=100):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss_of(model(inputs), labels).backward()
                optimizer.step()

    With a `group`, "all ranks" means the ranks of the group, here and below.

    When the block begins, ranks compare their models and get the parameters and buffers of rank 0.
    From then on each step of the inner optimizer counts. In a meeting the ranks average their
    *pseudo-gradients*: what all agreed on at the last meeting, minus their own parameters. The
    outer optimizer makes one step with the average. With ``alpha=0`` all ranks have the same bits
    in the parameters that have just met. When the block ends without an exception, `flush` makes
    all parameters equal.

    Outer parameters and the state of the outer optimizer are equal on all ranks at any time. The
    inner optimizer keeps its state, which no rank sends. Floating-point buffers (BatchNorm's
    statistics) are averaged when the last fragment meets. Other buffers stay each rank's own until
    `flush`, which gives rank 0's to all. Parameters that are frozen when the block begins take no
    part.

    Attributes:
      name: The prefix of the names of this object's operations; empty before the block begins.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        inner_optimizer: torch.optim.Optimizer | None,
        outer_optimizer: MakeOptimizer | None = None,
        *,
        every: int = 100,
        fragments: int = 1,
        delay: int = 0,
        alpha: float = 0.0,
        wire_dtype: TorchWireDType | None = None,
        error_feedback: bool = True,
        buffer_bytes: int = 0,
        digest_every: int = 10,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Checks the arguments. It needs no job, and sends nothing.

        Args:
          model: The model, or a `DistributedDataParallel` of it whose group trains it inside a
            site.
          inner_optimizer: The optimizer whose calls of `step` are counted. None means that the
            program calls `step` of this object instead, after each of its own steps.
          outer_optimizer: A function that takes a list of parameters and returns a torch optimizer
            over them. It is called once for each fragment, and must give the same on all ranks.
            None means SGD with a learning rate of 0.7 and Nesterov's momentum of 0.9.
          every: The number of steps between two meetings of a fragment.
          fragments: The number of parts of the model that meet one after the other, spread evenly
            over the interval. Each has about equally many elements.
          delay: The number of steps for which ranks train on before they use the result of a
            meeting. Must be less than `every` divided by `fragments`.
          alpha: The part of its own parameters that a rank keeps in a meeting, from 0 to 1. 0 gives
            all ranks the same parameters. More than 0 saves what a rank has learned during `delay`.
          wire_dtype: What pseudo-gradients travel in between nodes: "bfloat16", "float16", "fp8",
            "fp8_e5m2" or "int8", or a pair or a `TopK` as for `DistributedDataParallel`. None means
            float32, and float64 for parameters in float64.
          error_feedback: Whether what rounding to 8 bits loses is added to the next meeting
            (`residuals`).
          buffer_bytes: The size of a fusion buffer in bytes; 0 lets the plan choose.
          digest_every: The number of meetings of a fragment after which ranks compare a digest of
            its outer parameters; 0 means never.
          name: The name, the same on every rank. None numbers the objects of a group in the order
            in which their blocks begin.
          group: The `herring.Group` of workers that meet; None means all workers.

        Raises:
          InvalidArgumentError: An argument has a wrong type or is out of range.
        """
        if isinstance(model, (DistributedDataParallel, torch.nn.parallel.DistributedDataParallel)):
            model = model.module
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgumentError(
                f"DiLoCo: model is {shown(model)}; it must be a torch.nn.Module"
            )
        if isinstance(inner_optimizer, DistributedOptimizer):
            inner_optimizer = inner_optimizer.inner
        if inner_optimizer is not None and not isinstance(inner_optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"DiLoCo: inner_optimizer is {shown(inner_optimizer)}; it must be a torch "
                "optimizer, or None if the program calls step() of the DiLoCo object"
            )
        if isinstance(outer_optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                "DiLoCo: outer_optimizer is an optimizer already; give a function that makes one, "
                "such as lambda parameters: torch.optim.SGD(parameters, lr=0.7), because its "
                "parameters are copies that DiLoCo makes"
            )
        self._model = model
        self._optimizer = inner_optimizer
        self._make_outer = function_of(
            _sgd if outer_optimizer is None else outer_optimizer, "outer_optimizer"
        )
        self._every = count_of(every, "every", 1)
        self._count = count_of(fragments, "fragments", 1)
        if self._count > self._every:
            raise InvalidArgumentError(
                f"fragments is {fragments} and every is {every}; one fragment meets after a step, "
                "so fragments must be at most every"
            )
        self._delay = count_of(delay, "delay")
        if self._delay >= self._every // self._count:
            raise InvalidArgumentError(
                f"delay is {delay}; it must be less than every / fragments, {every} / {fragments}, "
                "so that a meeting ends before the next one begins"
            )
        self._alpha = number_of(alpha, "alpha")
        if not 0 <= self._alpha <= 1:
            raise InvalidArgumentError(f"alpha is {shown(alpha)}; it must be from 0 to 1")
        wire = wire_dtype_name(wire_dtype)
        self._options = {
            "wire_dtype": None if wire == "float32" else wire,
            "error_feedback": boolean_of(error_feedback, "error_feedback"),
            "buffer_bytes": count_of(buffer_bytes, "buffer_bytes"),
        }
        self._digest_every = count_of(digest_every, "digest_every")
        self._given_name = name
        self._the_group = group
        self.name = ""
        self._fragments: list[Fragment] = []
        self._trained: frozenset[str] = frozenset()  # that required gradients when plans were made
        self._job: Any = None  # in which the plans are
        self._plans: tuple[Any, int] = (None, 0)  # the job in which plans were made, how often
        self._hook: Any = None
        self._join: Join | None = None
        self._tokens = 0
        self._steps = 0  # of this rank
        self._since = 0  # the step at which the schedule began
        self._met = 0  # meetings since then
        self._unit: float | None = None  # the tokens that have weight 1
        self._is_behind = False  # whether this rank must take over the outer parameters

    def __repr__(self) -> str:
        return f"{type(self).__name__}(every={self._every}, fragments={self._count})"

    def __getstate__(self) -> dict[str, Any]:
        if self._job is not None:
            raise InvalidArgumentError(
                f"a {type(self).__name__} cannot be copied or pickled while its block is open; "
                "copy or save its state_dict()"
            )
        return self.__dict__

    # -- beginning and end ------------------------------------------------------------------------

    def __enter__(self) -> DiLoCo:
        if self._job is not None and is_running(self._job):
            raise InvalidArgumentError(
                f"{type(self).__name__}: the block has begun already; the end of a second one "
                "would end both, and later steps would not count"
            )
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._job is not None:
            self.flush()
        self.close()

    def open(self) -> None:
        """Compares the models of all ranks, makes plans, and begins to count (collective).

        The block of `with` calls it. The first time, all ranks get the parameters and buffers of
        rank 0. After `load_state_dict`, and in a later block, each rank keeps its own.

        Raises:
          InvalidArgumentError: There are more fragments than parameters, or a parameter cannot be
            averaged.
          MismatchError: Models, arguments or the numbers of steps differ between ranks.
        """
        if self._job is not None and is_running(self._job):
            return
        self._job, running = None, job()
        self.name = named_call(self._given_name, "diloco", self._the_group)
        is_new = not self._fragments
        try:
            self._prepare(is_new)
        except BaseException:
            self.close()
            if is_new:
                self._fragments = []
            raise
        self._is_behind = False
        self._job = running
        if self._optimizer is not None:
            myself = weakref.ref(self)

            def hook(*_: Any) -> None:
                if (one := myself()) is not None:
                    one.step()

            handle = self._optimizer.register_step_post_hook(hook)
            # An object whose block never ends must leave no hook behind when it is gone.
            self._hook = weakref.finalize(self, handle.remove)

    def _prepare(self, is_new: bool) -> None:
        """Compares the ranks, makes plans, and makes outer copies equal (collective)."""
        group = self._the_group
        with called("allgather", f"{self.name}.model.digest", group):
            if is_new:
                self._divide()
            lines = self._lines()
        require_agreement(lines, what="entry", name=f"{self.name}.model", group=group)
        tensors = self._all()
        if is_new:
            require_writable(tensors.items(), self.name)
        self._plan()
        if is_new:
            values = [tensor.detach() for tensor in tensors.values()]
            broadcast_tensors(values, 0, name=f"{self.name}.state", group=group)
            for fragment in self._fragments:
                fragment.take_over(tensors)
        elif self._is_behind:
            for fragment in self._fragments:
                fragment.give(tensors, 0.0)

    def close(self) -> None:
        """Stops counting, and ends the plans. A meeting that is under way is given up.

        Nothing is sent; call `flush` before it to make all ranks equal. `open` goes on.
        """
        if self._hook is not None:
            self._hook()
            self._hook = None
        for fragment in self._fragments:
            fragment.close()
        self._job = None

    def _divide(self) -> None:
        """Divides the model into fragments."""
        parameters = {
            name: parameter
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and parameter.numel()
        }
        for name, parameter in parameters.items():
            require_float(name, parameter)
        if len(parameters) < self._count:
            raise InvalidArgumentError(
                f"{self.name}: fragments is {self._count}, and only {len(parameters)} parameters "
                f"of {type(self._model).__name__} require gradients; each fragment needs one"
            )
        buffers = {
            name: buffer
            for name, buffer in self._model.named_buffers()
            if buffer.is_floating_point() and buffer.numel()
        }
        parts = split(parameters, self._count)
        self._fragments = [
            Fragment(part, buffers if part is parts[-1] else {}, self._make_outer) for part in parts
        ]
        for fragment in self._fragments:
            fragment.steps, fragment.tokens = self._steps, self._tokens
        self._trained = frozenset(parameters)

    def _lines(self) -> list[str]:
        """Returns what all ranks must have alike, in words."""
        counted = [self._steps, self._since, self._met, self._unit]
        counted += [fragment.meetings for fragment in self._fragments]
        outer = " ".join(repr(self._fragments[0].optimizer).split())
        return [
            f"every={self._every} fragments={self._count} delay={self._delay} alpha={self._alpha} "
            f"digest_every={self._digest_every} {self._options}",
            f"outer optimizer {outer}",
            f"steps and meetings {counted}",
            *(
                describe(key, tensor)
                for fragment in self._fragments
                for key, tensor in self._tensors(fragment).items()
            ),
            *(describe(key, tensor, values=True) for key, tensor in self._all().items()),
        ]

    def _plan(self) -> None:
        before, count = self._plans
        self._plans = job(), count + 1 if before is job() else 1
        for index, fragment in enumerate(self._fragments):
            name = f"{self.name}.{self._plans[1]}.{index}"
            fragment.plan(name, self._the_group, **self._options)

    def _all(self) -> dict[str, torch.Tensor]:
        return dict([*self._model.named_parameters(), *self._model.named_buffers()])

    def _tensors(self, fragment: Fragment) -> dict[str, torch.Tensor]:
        """Returns this rank's tensors of a fragment.

        Raises:
          InvalidArgumentError: The model lacks one, or it has another shape or dtype now.
        """
        there = self._all()
        found = {}
        for name, outer in fragment.outer.items():
            tensor = there.get(name)
            if tensor is None or tensor.shape != outer.shape or not tensor.is_floating_point():
                raise InvalidArgumentError(
                    f"{self.name}: {name!r} is "
                    + ("not in the model any more" if tensor is None else describe("", tensor))
                    + f", and met as a tensor of shape {list(outer.shape)}; make a new "
                    f"{type(self).__name__} after changing the model"
                )
            found[name] = tensor
        return found

    # -- the schedule -----------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The number of steps that were counted on this rank."""
        return self._steps

    @property
    def meetings(self) -> int:
        """The number of meetings of fragments whose result is in the outer parameters."""
        return sum(fragment.meetings for fragment in self._fragments)

    @property
    def outer_optimizers(self) -> list[torch.optim.Optimizer]:
        """The outer optimizers, one for each fragment; empty before the block begins.

        Change their learning rates on all ranks alike.
        """
        return [fragment.optimizer for fragment in self._fragments]

    @property
    def tokens(self) -> int:
        """The number of tokens (or samples) on which this rank has trained, if the program says so.

        Add the tokens of each batch to it before the step. Pseudo-gradients are then weighted by
        the tokens since the last meeting of the fragment. If no rank adds any, all weigh the same.
        """
        return self._tokens

    @tokens.setter
    def tokens(self, tokens: int) -> None:
        self._tokens = count_of(tokens, "tokens", self._tokens)

    def step(self) -> None:
        """Counts a step, and meets if it is time to. Only for ``inner_optimizer=None``.

        Call it equally often on all ranks: also after a step that `GradScaler` has skipped.

        Raises:
          InvalidArgumentError: The block has not begun; or a rank refuses the meeting, because its
            model has changed, or because only some ranks count tokens. All ranks raise it.
          MismatchError: The outer parameters differ between ranks.
          PeerLostError: A worker or a server died or left.
        """
        if self._job is None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: step() outside of its block; begin it by 'with' or open()"
            )
        self._steps += 1
        due = self._due(self._met)
        if self._under_way is None and self._steps >= due:
            if self._join is not None:
                self._join.active_ranks(active=True)
            self._meet(self._following, active=True)
        if self._under_way is not None and self._steps >= due + self._delay:
            self._complete(self._alpha)

    def _due(self, meeting: int) -> int:
        """Returns the step after which a meeting begins."""
        interval, fragment = divmod(meeting, self._count)
        return self._since + interval * self._every + (fragment + 1) * self._every // self._count

    @property
    def _following(self) -> Fragment:
        """The fragment that meets next."""
        return self._fragments[self._met % self._count]

    def _meet(self, fragment: Fragment, *, active: bool) -> None:
        tokens = self._tokens - fragment.tokens if active else 0
        if self._unit is None:
            self._unit = self._agree_on_unit(tokens)
        refusal: HerringError | None = None
        tensors: Mapping[str, torch.Tensor] = {}
        try:
            tensors = self._tensors(fragment)
            self._require_trained()
        except InvalidArgumentError as error:
            refusal = error
        due = self._digest_every and (fragment.meetings + 1) % self._digest_every == 0
        with work_range("meet", fragment.name):
            fragment.begin(
                tensors,
                Share(active, tokens, self._unit, refusal),
                steps=self._steps,
                tokens=self._tokens,
                with_digest=bool(due),
            )

    def _complete(self, alpha: float) -> None:
        fragment = self._under_way
        if fragment is not None:
            with work_range("outer step", fragment.name):
                fragment.settle()  # first, because all ranks wait for a rank that refuses
                fragment.apply(self._tensors(fragment), alpha)
            self._met += 1

    def _agree_on_unit(self, tokens: int) -> float:
        """Returns the tokens that have weight 1, once for all meetings (collective).

        What rounding has lost is in this unit, so it may not change. It keeps weighted
        pseudo-gradients near the size of others, which 16-bit floats can hold.
        """
        everyone = allgather_plain(tokens, name=f"{self.name}.tokens", group=self._the_group)
        given = [one for one in everyone if one]
        return 2.0 ** round(math.log2(sum(given) / len(given))) if given else 1.0

    def _require_trained(self) -> None:
        for name in self._trained_now():
            if name not in self._trained:
                raise InvalidArgumentError(
                    f"{self.name}: parameter {name!r} was unfrozen, so ranks train it without "
                    "meeting; call flush() on all ranks after unfreezing parameters"
                )

    def _trained_now(self) -> list[str]:
        return [
            name
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad and parameter.numel()
        ]

    def flush(self) -> None:
        """Lets all that was trained since the last meetings meet now (collective).

        Afterwards parameters and buffers are equal on all ranks, and the next interval begins.
        Ranks may have made different numbers of steps since their last meeting, but must have made
        equally many meetings: use `join` for uneven data. Parameters that were unfrozen on all
        ranks become part of the meetings, and those that were frozen leave them. Nothing meets
        twice: it changes nothing right after a meeting with ``fragments=1`` and ``alpha=0``.

        Raises:
          InvalidArgumentError: The block has not begun.
          MismatchError: Ranks train different parameters.
        """
        if self._job is None:
            raise InvalidArgumentError(
                f"{type(self).__name__}: flush() outside of its block; begin it by 'with' or open()"
            )
        group = self._the_group
        self._complete(0.0)
        own = [self._steps - fragment.steps for fragment in self._fragments]
        now = frozenset(self._trained_now())
        told = allgather_plain(
            [self._steps, own, now != self._trained], name=f"{self.name}.flush", group=group
        )
        has_changed = any(changed for _, _, changed in told)
        self._trained = now  # what was unfrozen meets below
        for fragment, made in zip(self._fragments, zip(*(each for _, each, _ in told))):
            if any(made):
                self._meet(fragment, active=self._steps > fragment.steps)
                self._complete(0.0)
            fragment.give(self._tensors(fragment), 0.0)
        self._steps = self._since = max(steps for steps, _, _ in told)
        self._met = 0
        for fragment in self._fragments:
            fragment.steps, fragment.tokens = self._steps, self._tokens
        if has_changed:
            self._divide_again()
        others = [
            buffer for _, buffer in self._model.named_buffers() if not buffer.is_floating_point()
        ]
        broadcast_tensors(others, 0, name=f"{self.name}.buffers", group=group)

    def _divide_again(self) -> None:
        """Makes fragments of the parameters that require gradients now (collective)."""
        group, before = self._the_group, self._fragments
        residuals: dict[str, torch.Tensor] = {}
        if self._rounds_to_8_bits:
            for fragment in before:
                residuals.update(fragment.residuals())
        try:
            with called("allgather", f"{self.name}.model.digest", group):
                self._divide()
                lines = self._lines()
            require_agreement(lines, what="entry", name=f"{self.name}.model", group=group)
        except BaseException:
            self._fragments = before
            raise
        for fragment in before:
            fragment.close()
        known = {name: fragment for fragment in before for name in fragment.outer}
        for fragment in self._fragments:
            for name, outer in fragment.outer.items():
                if name in known:
                    fragment.inherit(name, known[name])
                else:  # ranks have trained it alone
                    values = outer.detach().contiguous()
                    outer.copy_(allreduce(values, name=f"{self.name}.new.{name}", group=group))
            fragment.give(self._tensors(fragment), 0.0)
        self._plan()
        if self._rounds_to_8_bits:
            for fragment in self._fragments:
                fragment.give_residuals(residuals)

    # -- ranks with different numbers of batches --------------------------------------------------

    @contextlib.contextmanager
    def join(self) -> Iterator[Join]:
        """Returns a context for uneven data: ranks without more batches let the others go on.

        Put the training loop of every rank inside the block. What a rank has trained since its last
        meetings counts in the next ones. After these it contributes nothing, and takes the results.
        When all ranks have left, they `flush`. Inside the block each meeting begins with a small
        all-reduce, in which each rank says whether it still has data.

        Raises:
          InvalidArgumentError: Another such block has not ended.
        """
        with Join(self) as join:
            yield join
        self.flush()

    def _group(self) -> Group | None:
        return self._the_group

    def _recover(self) -> None:
        """Does nothing: no round is left open by a backward pass that was interrupted."""

    def _shadow(self, root: int) -> None:
        """Takes part in a meeting of the ranks that still have data."""
        del root
        self._complete(0.0)
        following = self._following
        self._meet(following, active=self._steps > following.steps)
        self._complete(0.0)

    def _state(self) -> list[torch.Tensor]:
        return []  # `flush` makes all ranks equal

    def _get_steps(self) -> int:
        return self._steps

    def _set_steps(self, steps: int) -> None:
        """Does nothing: `flush` takes over the largest number of steps."""
