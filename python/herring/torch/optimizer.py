"""DistributedOptimizer: an optimizer that steps with gradients averaged over all ranks."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from herring.arrays.arguments import count_of, shown
from herring.arrays.calls import named as named_call
from herring.arrays.groups import Group
from herring.errors import HerringError, InvalidArgumentError
from herring.partial import Quorum, Replay, RoundInfo
from herring.partial.reduction import wants_rounds
from herring.torch.compiled import untraced
from herring.torch.naming import listed, named_in, require_all
from herring.torch.partial import InRounds, PartialReducer, require_steps, round_options
from herring.torch.ranges import work_range
from herring.torch.reducer import GradientReducer
from herring.torch.residuals import KeepsResiduals
from herring.torch.state import broadcast_parameters as _broadcast_parameters
from herring.torch.tensors import TorchWireDType

# Attributes of the wrapper itself. All other attributes are the wrapped optimizer's.
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
        "_step_supports_amp_scaling",
    ]
)


class DistributedOptimizer(InRounds, KeepsResiduals, torch.optim.Optimizer):
    """Wraps any torch optimizer, for models that are not wrapped themselves.

    Gradients are sent during the backward pass and are averaged when `backward()` returns, so
    clipping and logging before `step()` see the averages. If a rank's backward pass touched none of
    the parameters, its `step()` completes the round. Use either this class or
    `DistributedDataParallel` for a parameter, not both. State, groups and hooks are those of the
    wrapped optimizer. Learning rate schedulers and `GradScaler` take the wrapper.

    With reentrant checkpoints (`use_reentrant=True`) each nested pass is a round of its own. The
    result is correct, but more bytes are sent; `DistributedDataParallel` avoids this.

    With a `group`, "all ranks" means the ranks of the group.

    Attributes:
      inner: The wrapped optimizer.
    """

    @untraced
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
        wire_dtype: TorchWireDType | None = None,
        *,
        error_feedback: bool = True,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        gradient_as_bucket_view: bool = False,
        broadcast_parameters: bool = True,
        sync: str | Quorum | Replay = "full",
        algorithm: str = "herring",
        results: str = "every",
        synchronize_every: int = 0,
        each_round: Callable[[RoundInfo], None] | None = None,
        digest_every: int | None = None,
        name: str | None = None,
        group: Group | None = None,
    ) -> None:
        """Compares the parameters across ranks, broadcasts rank 0's, and plans (collective).

        Args:
          optimizer: An optimizer over the same parameters on every rank.
          named_parameters: `model.named_parameters()`, so that messages can name parameters. It
            must have all parameters of the optimizer that require gradients.
          wire_dtype: What gradients travel in between nodes: "bfloat16" or "float16" (float32
            gradients, half the bytes), "fp8", "fp8_e5m2" or "int8" (8 bits and one scale for each
            32 numbers, a quarter of float32's bytes). Sums are made in float32. With a pair such as
            ``("fp8", "bfloat16")`` averages come back in the second: "bfloat16", "float16" or
            "float32".
          error_feedback: Whether what rounding to 8 bits loses is added to the next gradients
            (`residuals`).
          buffer_bytes: The size of a fusion buffer in bytes; 0 lets the plan choose. With a partial
            `sync`, each buffer has rounds of its own and leaves during the backward pass; 0 makes
            rounds of whole updates.
          sparse: "keep" exchanges the rows of sparse gradients, which stay sparse. "densify" makes
            them dense, with one warning. "error" refuses them.
          gradient_as_bucket_view: Whether `.grad` becomes a view of the arena. This saves a copy
            and its memory, but the next backward pass overwrites gradients that the user kept.
          broadcast_parameters: False leaves the parameters as they are.
          sync: "full" waits for every worker. "solo", "majority", a `herring.Quorum` or a
            `herring.Replay` exchanges gradients in rounds that do not. `step()` then contributes
            this rank's gradients and makes one step for each round's result; training ends with
            `flush()`. Such rounds take a `wire_dtype` of 16 bits only.
          algorithm: Who closes the rounds and sums, with `sync` "solo" or "majority": "herring"
            (the servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers, by
            messages between them; docs/partial.md).
          each_round: With such a `sync`, a function called before each of these steps, when `.grad`
            has the result. Use it for clipping, and for schedulers that count rounds.
          results: With such a `sync`, "every": all ranks apply all results in order, and replicas
            stay equal. "latest": a rank that was late applies the newest result only, as in the
            paper; replicas then differ until they are averaged (docs/partial.md).
          synchronize_every: With results="latest", the number of rounds after which all ranks
            average their parameters; 0 means at the end, in `flush`, only.
          digest_every: With such a `sync`, the number of rounds after which ranks compare a digest
            of the parameters; 0 means never, and None 100 (0 with results="latest").
          name: The wrapper's name, the same on every rank. None numbers the optimizers of a group
            in order of construction.
          group: The `herring.Group` of workers that train these parameters; None means all workers.

        Raises:
          InvalidArgumentError: Parameters are missing from `named_parameters`, have a name twice,
            or cannot be averaged; or this rank is not in the group.
          MismatchError: The parameters differ between ranks.
        """
        # super().__init__() is not called: groups, state and defaults are the wrapped optimizer's.
        if isinstance(optimizer, DistributedOptimizer):
            raise InvalidArgumentError("the optimizer is a DistributedOptimizer already")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"optimizer is {shown(optimizer)}; it must be a torch optimizer"
            )
        if wants_rounds(sync, algorithm, group):
            require_steps(optimizer, sync)
        self.inner = optimizer
        self._known = listed(named_parameters)
        if not any(p.requires_grad for entry in optimizer.param_groups for p in entry["params"]):
            raise InvalidArgumentError(
                "DistributedOptimizer: none of the optimizer's parameters requires a gradient, so "
                "nothing would be averaged; unfreeze the parameters to be trained before wrapping"
            )
        buffer_bytes = count_of(buffer_bytes, "buffer_bytes")
        self.name = named_call(name, "optimizer", group)
        self._rounds_at_step = 0
        named = self._name_parameters()
        if broadcast_parameters:
            _broadcast_parameters(named, 0, name=f"{self.name}.state", group=group)
        self._each_round = each_round
        myself = weakref.ref(self)

        def relist() -> list[tuple[str, torch.nn.Parameter]] | None:
            return None if (wrapper := myself()) is None else wrapper._relist()

        self._partial: PartialReducer | None = None
        rounds = round_options(
            sync,
            group,
            algorithm=algorithm,
            results=results,
            synchronize_every=synchronize_every,
            digest_every=digest_every,
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
        )
        if rounds is not None:
            # Each rank's own scale must be out of what it contributes. So GradScaler must not leave
            # unscaling to a fused optimizer, whose steps have the results of rounds. What leaves
            # during the backward pass has the scale, and then `step` must see that there is one.
            self._step_supports_amp_scaling = bool(buffer_bytes)
            self._partial = PartialReducer(named, name=self.name, options=rounds, relist=relist)
            return
        self._reducer = GradientReducer(
            named,
            name=self.name,
            wire_dtype=wire_dtype,
            error_feedback=error_feedback,
            buffer_bytes=buffer_bytes,
            sparse=sparse,
            views=gradient_as_bucket_view,
            sparse_parameters=(
                [p for _, p in named] if isinstance(optimizer, torch.optim.SparseAdam) else []
            ),
            relist=relist,
            group=group,
            missing="step",
        )

    def _relist(self) -> list[tuple[str, torch.nn.Parameter]] | None:
        """Returns all parameters if groups changed other than by add_param_group, else None."""
        sizes = [len(group["params"]) for group in self.inner.param_groups]
        return None if sizes == self._sizes else self._name_parameters()

    def _name_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        self._sizes = [len(group["params"]) for group in self.inner.param_groups]
        require_all(self.inner, self._known, frozen=False)
        return named_in(self.inner, self._known)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters with the averaged gradients.

        Args:
          closure: The closure for the wrapped optimizer. It may call `backward()` several times,
            equally often on every rank.

        Returns:
          What the wrapped optimizer's `step` returns; with a partial `sync`, the closure's result.

        Raises:
          HerringError: The backward pass raised, on this rank or another. Gradients were cleared.
        """
        if self._partial is not None:
            return self._step_in_rounds(self._partial.steps, closure)

        def averaged() -> Any:
            loss = None if closure is None else _evaluated(closure)
            with work_range("synchronize", self.name):
                self._end_round("step")
            self._rounds_at_step = self._reducer.rounds
            return loss

        if closure is not None:
            return self.inner.step(averaged)
        averaged()
        return self.inner.step()

    @untraced
    def _step_in_rounds(
        self, rounds: Callable[[], Iterator[RoundInfo]], closure: Callable[[], Any] | None = None
    ) -> Any:
        if getattr(self.inner, "found_inf", None) is not None:  # GradScaler has set it
            raise InvalidArgumentError(
                f"{self.name}: with buffer_bytes gradients leave during the backward pass, before "
                "a GradScaler can unscale them; leave buffer_bytes out, or train without GradScaler"
            )
        loss = None if closure is None else _evaluated(closure)
        for info in rounds():
            if self._each_round is not None:
                self._each_round(info)
            self.inner.step()
        return loss

    def flush(self) -> None:
        """Ends training with a partial `sync`: makes the steps of all rounds until all ranks flush.

        Ranks may have made different numbers of steps; afterwards their parameters are equal. With
        sync="full" it does nothing.
        """
        if self._partial is not None:
            self._partial.drop_overflow()
            self._step_in_rounds(self._partial.flush)

    def synchronize(self) -> None:
        """Ends a round if none has ended since the last step (collective in that case).

        A program needs it only if a rank's backward pass may touch no parameter at all, and the
        gradients are read before `step()`.
        """
        if self._partial is not None:
            return
        with work_range("synchronize", self.name):
            self._end_round()

    def _end_round(self, without: str = "pass") -> None:
        if self._reducer.round_open:
            self._reducer.abandon()
            raise HerringError(
                f"{self.name}: step() after a backward pass that raised; the step was given up on "
                "all ranks, and gradients were cleared"
            )
        if self._reducer.rounds == self._rounds_at_step and self._reducer.enabled:
            self._reducer.finish_step(without=without)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears gradients. If a backward pass raised, gives up its step on all ranks as well."""
        if self._partial is not None:
            self._partial.abandon(stacklevel=2)
        else:
            self._reducer.abandon(stacklevel=2)
            if self._reducer.given_up:
                self._rounds_at_step = self._reducer.rounds  # no step belongs to that round
        self.inner.zero_grad(set_to_none=set_to_none)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients locally in backward passes inside the block; nothing is sent."""
        with (self._partial or self._reducer).paused():
            yield

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Adds parameters (collective); only for optimizers made without `named_parameters`.

        Args:
          group: A parameter group, as torch's optimizers take it.

        Raises:
          InvalidArgumentError: The wrapper was made with `named_parameters` or a partial `sync`.
        """
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

    # -- everything else comes from the wrapped optimizer -----------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The parameter groups of the wrapped optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """The state of the wrapped optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The default options of the wrapped optimizer."""
        return self.inner.defaults

    def state_dict(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's state_dict."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state_dict into the wrapped optimizer."""
        self.inner.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # Attributes that others set on the wrapper are meant for the optimizer; GradScaler passes
        # its scale to a fused optimizer this way. `step` and other methods, which schedulers wrap,
        # are set on the wrapper. So is what the object has already: Lightning's optimizers make
        # themselves subclasses of the class of what they hold.
        if name in self.__dict__ or name in _OWN or hasattr(type(self), name):
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
        raise no_copies()


def no_copies() -> InvalidArgumentError:
    """Returns the error of a wrapped optimizer that is pickled or copied.

    What comes out would not average gradients.
    """
    return InvalidArgumentError(
        "a DistributedOptimizer cannot be pickled or copied; save or copy optimizer.state_dict(), "
        "not the wrapper"
    )


def _evaluated(closure: Callable[[], Any]) -> Any:
    with torch.enable_grad():
        return closure()
