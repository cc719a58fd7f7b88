"""DistributedDataParallel: a module whose gradients are averaged over all ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from herring.errors import InvalidArgumentError
from herring.partial import Quorum, Replay, RoundInfo
from herring.torch.agreement import describe, require_agreement
from herring.torch.join import Join
from herring.torch.partial import InRounds, PartialReducer, wants_rounds
from herring.torch.reducer import GradientReducer, in_backward
from herring.torch.state import broadcast_tensors
from herring.torch.tensors import FlatBytes

_counter = itertools.count()


class DistributedDataParallel(InRounds, torch.nn.Module):
    """Wraps a module so that `backward()` returns with gradients averaged over all ranks.

    At construction parameters and buffers become those of rank 0. Each gradient is put in its
    place as autograd produces it, and sent while the backward pass goes on; `.grad` is then a view
    of that place. Parameters that this rank did not use in a step get the others' average; a
    parameter that no rank used keeps `.grad` None. Each step may use other parameters.

    `state_dict()` has the keys of the wrapped module, without a prefix, so that checkpoints can be
    exchanged with it; `load_state_dict` also takes keys with the prefix "module.". Attributes that
    the wrapper lacks are looked up in the module. For evaluation on some ranks only, call the
    wrapper under `torch.no_grad()` or in eval mode, or call `ddp.module`.

    Attributes:
      module: the wrapped module.
      name: prefix of the names of this wrapper's operations.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        wire_dtype: str | torch.dtype | None = None,
        broadcast_buffers: bool = True,
        buffer_bytes: int = 0,
        sparse: str = "densify",
        sync: str | Quorum | Replay = "full",
        digest_every: int = 100,
        name: str | None = None,
    ) -> None:
        """Compares the module across ranks, broadcasts it from rank 0, and plans (collective).

        Args:
          module: on the CPU, or on a CUDA device (gradients then pass through the host).
          wire_dtype: "bfloat16" or "float16" sends float32 gradients in half the bytes.
          broadcast_buffers: give buffers (BatchNorm statistics) of rank 0 to all before each
            forward pass in training mode with gradients enabled, as torch does.
          buffer_bytes: size of a fusion buffer; 0 lets the plan choose.
          sparse: "densify" makes sparse gradients dense, with one warning; "error" refuses them.
          sync: "full", or "solo", "majority", a `herring.Quorum` or a `herring.Replay`: gradients
            are then exchanged in rounds that do not wait for every worker (`rounds`,
            docs/partial.md). wire_dtype and buffer_bytes have no meaning there, and buffers are
            broadcast by `flush` alone.
          digest_every: in those modes, rounds after which a digest of the parameters is compared
            across ranks; 0: never.
          name: the same on every rank; None numbers the wrappers in order of construction.

        Raises:
          InvalidArgumentError: a parameter that cannot be averaged, or an unknown option.
          MismatchError: names, shapes, dtypes or options differ between ranks.
        """
        super().__init__()
        self.name = name or f"ddp{next(_counter)}"
        self.module = module
        self._join: Join | None = None
        self._broadcast_buffers = broadcast_buffers
        self._buffer_homes = [
            (owner, key)
            for owner in module.modules()
            for key, buffer in owner._buffers.items()
            if buffer is not None
        ]
        self._flat_buffers: FlatBytes | None = None
        self._partial: PartialReducer | None = None
        partial = wants_rounds(sync, wire_dtype, buffer_bytes)
        named = list(module.named_parameters())
        if sparse == "error":
            self._refuse_sparse()
        require_agreement(
            [
                f"broadcast_buffers={broadcast_buffers} sparse={sparse} sync={sync!r}",
                *(describe(key, parameter) for key, parameter in named),
                *(describe(f"buffer {key}", buffer) for key, buffer in module.named_buffers()),
            ],
            what="entry",
            name=f"{self.name}.module",
        )
        broadcast_tensors(self._state(), 0, name=f"{self.name}.state")
        self._frozen = [(key, p) for key, p in named if not p.requires_grad]
        if partial:
            self._partial = PartialReducer(
                named, name=self.name, sync=sync, digest_every=digest_every
            )
        else:
            self._reducer = GradientReducer(
                named,
                name=self.name,
                wire_dtype=wire_dtype,
                buffer_bytes=buffer_bytes,
                sparse=sparse,
            )
            self._arm = self._make_output_hook()
        self.register_state_dict_post_hook(_drop_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module; in training with gradients, prepares this step's averaging."""
        stepping = torch.is_grad_enabled() and not in_backward()  # not a checkpoint's second run
        if self._partial is not None:
            if stepping and self._partial.pending and self._partial.enabled:
                raise InvalidArgumentError(
                    f"{self.name}: the gradients of the last backward pass were not exchanged; "
                    "with sync=... follow it by 'for _ in model.rounds(): optimizer.step()'"
                )
            return self.module(*inputs, **kwargs)
        if stepping and self._reducer.enabled:
            self._recover()
            self._check_frozen()
            root = 0
            if self._join is not None:
                root = self._join.active_ranks(active=True)[0]
            if self.training:
                self._sync_buffers(root)
        output = self.module(*inputs, **kwargs)
        if torch.is_grad_enabled():
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._arm)
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward passes accumulate gradients locally; nothing is sent.

        The next backward pass outside averages the sums. What counts is where `backward()` is
        called; a forward pass inside leaves buffers and `join` alone.
        """
        if self._partial is not None:
            with self._partial.paused():
                yield
            return
        with self._reducer.paused():
            yield

    def rounds(self) -> Iterator[RoundInfo]:
        """With a partial `sync`, what follows each backward pass.

            for _ in model.rounds():
                optimizer.step()

        Contributes this rank's gradients, and leaves the result of one round after the other in
        `.grad`, of those that were missed first. Clip and schedule inside the loop: each pass is
        one step, of which all ranks make the same. With sync="full" it yields once, after the
        averages are there anyway.

        Yields:
          What is known about the round (None with sync="full").
        """
        if self._partial is None:
            yield None
        else:
            yield from self._partial.steps()

    def flush(self) -> Iterator[RoundInfo]:
        """As `rounds`, at the end of training: the last round is the same on all ranks.

        Ranks may have made different numbers of steps: who flushes applies the results of those who
        go on, until all flush. Nothing stays pending after it. Buffers of rank 0 then go to all, if
        `broadcast_buffers`.
        """
        if self._partial is None:
            return
        info = None
        for info in self._partial.flush():
            yield info
        if self._broadcast_buffers and self._buffer_homes and not (info and info.lost):
            self._sync_buffers(0)

    def join(self) -> Join:
        """A context for uneven data: ranks that run out of batches let the others go on.

        Put the training loop of every rank inside. Each forward pass in training is to be followed
        by one backward pass. See `Join`.
        """
        if self._partial is not None:
            raise InvalidArgumentError(
                f"{self.name}: join() is for sync='full'; rounds do not need equal numbers of steps"
            )
        return Join(self)

    @property
    def contributors(self) -> int:
        """How many workers are in the last average."""
        return (self._partial or self._reducer).contributors

    def close(self) -> None:
        """Removes the hooks and ends the plan; the module stays usable by itself."""
        (self._partial or self._reducer).close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    def __getstate__(self) -> dict[str, Any]:
        raise InvalidArgumentError("copy or save ddp.module, or its state_dict(), not the wrapper")

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedDataParallel:
        self.__getstate__()
        raise AssertionError("unreachable")

    # -- for join and for itself ------------------------------------------------------------------

    def _state(self) -> list[torch.Tensor]:
        tensors = [parameter.detach() for parameter in self.module.parameters()]
        return tensors + self._buffer_tensors()

    def _buffer_tensors(self) -> list[torch.Tensor]:
        seen: dict[int, torch.Tensor] = {}
        for owner, key in self._buffer_homes:
            buffer = owner._buffers[key]
            seen.setdefault(id(buffer), buffer)
        return list(seen.values())

    def _sync_buffers(self, root: int) -> None:
        if not self._broadcast_buffers or not self._buffer_homes:
            return
        buffers = self._buffer_tensors()
        if self._flat_buffers is None:
            self._flat_buffers = FlatBytes(buffers)
        broadcast_tensors(buffers, root, name=f"{self.name}.buffers", flat=self._flat_buffers)

    def _shadow(self, root: int) -> None:
        """One step of the others, on a rank that has left `join`."""
        if self.training:
            self._sync_buffers(root)
        self._reducer.shadow()

    def _recover(self) -> None:
        if self._reducer.round_open:
            warnings.warn(
                f"{self.name}: the last backward pass raised an error; its step is given up on all "
                "ranks, and gradients are cleared",
                stacklevel=5,  # past Module.__call__
            )
            self._reducer.abandon()

    def _check_frozen(self) -> None:
        for key, parameter in self._frozen:
            if parameter.requires_grad:
                raise InvalidArgumentError(
                    f"parameter {key!r} was frozen when {self.name!r} was made and is not now, so "
                    "its gradient would not be averaged; close() the wrapper and make a new one"
                )

    def _refuse_sparse(self) -> None:
        for key, child in self.module.named_modules():
            if isinstance(child, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and child.sparse:
                raise InvalidArgumentError(
                    f"module {key!r} makes sparse gradients, and sparse='error' was asked for; "
                    "build it with sparse=False, or pass sparse='densify'"
                )

    def _make_output_hook(self) -> Any:
        reducer = weakref.ref(self._reducer)

        def hook(_gradient: torch.Tensor) -> None:
            # In the outermost pass, so that the round ends with it, whatever runs nested inside;
            # and also when no parameter at all is used on this rank.
            if (target := reducer()) is not None:
                target.arm_from_output()

        return hook


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside nested containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def _drop_prefix(
    ddp: DistributedDataParallel, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]
) -> None:
    inner = f"{prefix}module."
    for key in [key for key in state if key.startswith(inner)]:
        state[prefix + key.removeprefix(inner)] = state.pop(key)


def _add_prefix(ddp: DistributedDataParallel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in ddp.module.state_dict():
        if prefix + key in state:
            state[f"{prefix}module.{key}"] = state.pop(prefix + key)
