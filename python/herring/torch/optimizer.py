"""DistributedOptimizer: an optimizer that steps with gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from herring.arrays.arguments import count_of, shown
from herring.arrays.collectives import named as named_call
from herring.arrays.groups import Group, scope_of
from herring.arrays.partial import Quorum, Replay, RoundInfo
from herring.errors import HerringError, InvalidArgumentError
from herring.torch.partial import InRounds, PartialReducer, wants_rounds
from herring.torch.reducer import GradientReducer
from herring.torch.state import broadcast_parameters as _broadcast_parameters

# Attributes of the wrapper itself; all others are the wrapped optimizer's.
_OWN = frozenset(
    [
        "inner",
        "name",
        "_each_round",
        "_known",
        "_partial",
        "_reducer",
        "_rounds_at_step",
        "_sizes",
    ]
)


class DistributedOptimizer(InRounds, torch.optim.Optimizer):
    """Wraps any torch optimizer; for models that are not wrapped themselves.

    Gradients are sent while the backward pass runs and are averaged when `backward()` returns, so
    that clipping and logging between it and `step()` see the averages. `step()` completes the round
    on a rank whose backward pass touched none of the parameters. Use either this class or
    `DistributedDataParallel` for a parameter. State, groups and hooks are those of the wrapped
    optimizer; learning rate schedulers and `GradScaler` take the wrapper.

    With reentrant checkpoints (`use_reentrant=True`) each nested pass is a round of its own:
    correct, but with more bytes. `DistributedDataParallel` does not have that cost.

    With a `group` all ranks are those of the group.

    Attributes:
      inner: the wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        wire_dtype: str | torch.dtype | None = None,
        *,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        gradient_as_bucket_view: bool = False,
        broadcast_parameters: bool = True,
        sync: str | Quorum | Replay = "full",
        each_round: Callable[[RoundInfo], None] | None = None,
        digest_every: int = 100,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Compares the parameters across ranks, broadcasts rank 0's, and plans (collective).

        Args:
          optimizer: over the same parameters on every rank.
          named_parameters: `model.named_parameters()`, for messages that name parameters; all
            parameters of the optimizer that require gradients must be among them.
          wire_dtype: as for `DistributedDataParallel`.
          buffer_bytes: as for `DistributedDataParallel`.
          sparse: as for `DistributedDataParallel`.
          gradient_as_bucket_view: as for `DistributedDataParallel`.
          broadcast_parameters: False leaves the parameters as they are.
          sync: as for `DistributedDataParallel`. In partial modes `step()` contributes this rank's
            gradients and makes one step for each round's result, and training ends with `flush()`.
          each_round: in those modes called before each of these steps, when `.grad` holds the
            result: for clipping, and for schedulers that count rounds.
          digest_every: as for `DistributedDataParallel`.
          name: the same on every rank; None numbers the optimizers of a group in order of
            construction.
          group: from `herring.new_group`: the workers that train these parameters; None: all.

        Raises:
          InvalidArgumentError: parameters are missing from `named_parameters`, have a name twice,
            or cannot be averaged; this rank is not in the group.
          MismatchError: the parameters differ between ranks.
        """
        # Not super().__init__: groups, state and defaults are those of the wrapped optimizer.
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"optimizer is {shown(optimizer)}; it must be a torch optimizer"
            )
        scope_of(group)
        self.inner = optimizer
        self._known = None if named_parameters is None else _listed(named_parameters)
        if not any(p.requires_grad for entry in optimizer.param_groups for p in entry["params"]):
            raise InvalidArgumentError(
                "DistributedOptimizer: none of the optimizer's parameters requires a gradient, so "
                "that nothing would be averaged; unfreeze what is to be trained before"
            )
        buffer_bytes = count_of(buffer_bytes, "buffer_bytes")
        self.name = named_call(name, "optimizer", group)
        self._rounds_at_step = 0
        named = self._name_parameters()
        if broadcast_parameters:
            _broadcast_parameters(named, 0, name=f"{self.name}.state", group=group)
        self._each_round = each_round
        self._partial: PartialReducer | None = None
        if wants_rounds(sync, wire_dtype, buffer_bytes, group):
            self._partial = PartialReducer(
                named, name=self.name, sync=sync, digest_every=digest_every, group=group
            )
            return
        myself = weakref.ref(self)
        self._reducer = GradientReducer(
            named,
            name=self.name,
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
            sparse=sparse,
            views=gradient_as_bucket_view,
            sparse_parameters=(
                [p for _, p in named] if isinstance(optimizer, torch.optim.SparseAdam) else []
            ),
            relist=lambda: None if (wrapper := myself()) is None else wrapper._relist(),
            group=group,
        )

    def _relist(self) -> list[tuple[str, torch.nn.Parameter]] | None:
        """All parameters, if some were put into the groups by other ways than add_param_group."""
        sizes = [len(group["params"]) for group in self.inner.param_groups]
        return None if sizes == self._sizes else self._name_parameters()

    def _name_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        groups = self.inner.param_groups
        self._sizes = [len(group["params"]) for group in groups]
        if self._known is None:
            return [
                (f"group{g}.parameter{i}", parameter)
                for g, group in enumerate(groups)
                for i, parameter in enumerate(group["params"])
            ]
        names = [key for key, _ in self._known]
        if len(set(names)) != len(names):
            twice = next(key for key in names if names.count(key) > 1)
            raise InvalidArgumentError(f"named_parameters has the name {twice!r} twice")
        mine = {id(p) for group in groups for p in group["params"]}
        known = {id(p) for _, p in self._known}
        for g, group in enumerate(groups):
            for i, parameter in enumerate(group["params"]):
                if parameter.requires_grad and id(parameter) not in known:
                    raise InvalidArgumentError(
                        f"parameter {i} of group {g} is not among named_parameters; pass "
                        "model.named_parameters() of all models that the optimizer trains"
                    )
        return [(key, parameter) for key, parameter in self._known if id(parameter) in mine]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with the averaged gradients.

        Args:
          closure: as for the wrapped optimizer; it may call `backward()` several times, equally
            often on every rank.

        Raises:
          HerringError: the backward pass raised, here or on another rank; gradients were cleared.
        """
        if self._partial is not None:
            return self._step_in_rounds(self._partial.steps(), closure)

        def averaged() -> Any:
            loss = None if closure is None else _evaluated(closure)
            self.synchronize()
            self._rounds_at_step = self._reducer.rounds
            return loss

        if closure is not None:
            return self.inner.step(averaged)
        averaged()
        return self.inner.step()

    def _step_in_rounds(
        self, rounds: Iterator[RoundInfo], closure: Callable[[], Any] | None = None
    ) -> Any:
        loss = None if closure is None else _evaluated(closure)
        for info in rounds:
            if self._each_round is not None:
                self._each_round(info)
            self.inner.step()
        return loss

    def flush(self) -> None:
        """Ends training in partial modes: makes the steps of all rounds until all ranks flush.

        Ranks may have made different numbers of steps; afterwards their parameters are equal. With
        sync="full" there is nothing to do.
        """
        if self._partial is not None:
            self._step_in_rounds(self._partial.flush())

    def synchronize(self) -> None:
        """Makes sure that a round has ended since the last step (collective where none has).

        Only needed where a rank's backward pass may touch no parameter at all and gradients are
        looked at before `step()`.
        """
        if self._partial is not None:
            return
        if self._reducer.round_open:
            self._reducer.abandon()
            raise HerringError(
                f"{self.name}: step() after a backward pass that raised; the step is given up on "
                "all ranks, and gradients were cleared"
            )
        if self._reducer.rounds == self._rounds_at_step and self._reducer.enabled:
            self._reducer.finish_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients; also gives up, on all ranks, a step whose backward pass raised."""
        if self._partial is None:
            self._reducer.abandon(stacklevel=2)
            if self._reducer.given_up:
                self._rounds_at_step = self._reducer.rounds  # there is no step of it
        self.inner.zero_grad(set_to_none=set_to_none)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward passes accumulate gradients locally; nothing is sent."""
        with (self._partial or self._reducer).paused():
            yield

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Adds parameters (collective). Only for optimizers made without `named_parameters`."""
        if self._partial is not None:
            raise InvalidArgumentError("add_param_group is for sync='full'")
        if self._known is not None:
            raise InvalidArgumentError(
                "add_param_group on a DistributedOptimizer made with named_parameters; add the "
                "group before wrapping"
            )
        self.inner.add_param_group(group)
        self._reducer.adopt(self._name_parameters())
        self._rounds_at_step = self._reducer.rounds

    def close(self) -> None:
        """Removes the hooks and ends the plan; the wrapped optimizer stays usable."""
        (self._partial or self._reducer).close()

    # -- everything else is the wrapped optimizer's -----------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups of the wrapped optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """State of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Default options of the wrapped optimizer."""
        return self.inner.defaults

    def state_dict(self) -> dict[str, Any]:
        """The state_dict of the wrapped optimizer."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state_dict into the wrapped optimizer."""
        self.inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # What others leave on the wrapper is meant for the optimizer: GradScaler hands a fused one
        # its scale in that way. But `step` and the like, which schedulers wrap, are ours.
        if name in _OWN or hasattr(type(self), name):
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self.inner, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.inner!r})"

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgumentError("save optimizer.state_dict(), not the wrapper")


def _evaluated(closure: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        return closure()


def _listed(named_parameters: Any) -> list[tuple[str, torch.nn.Parameter]]:
    try:
        pairs = [(name, parameter) for name, parameter in named_parameters]
    except (TypeError, ValueError, RuntimeError):
        pairs = [("", None)]
    if all(isinstance(one, torch.Tensor) and isinstance(name, str) for name, one in pairs):
        return pairs
    raise InvalidArgumentError(
        f"named_parameters is {shown(named_parameters)}; it must be model.named_parameters()"
    )
