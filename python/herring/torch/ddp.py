"""DistributedDataParallel: a module whose gradients are averaged over all ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.arguments import text_of
from herring.arrays.collectives import named as named_call
from herring.arrays.groups import Group
from herring.arrays.partial import Quorum, Replay, RoundInfo
from herring.errors import InvalidArgumentError
from herring.torch.arguments import (
    buffer_bytes_of,
    check_module,
    check_process_group,
    check_torch_arguments,
    input_device,
    moved,
)
from herring.torch.join import Join
from herring.torch.membership import Membership
from herring.torch.partial import InRounds, PartialReducer, wants_rounds
from herring.torch.passes import accumulates, in_backward
from herring.torch.reducer import GradientReducer
from herring.torch.state import broadcast_tensors
from herring.torch.tensors import FlatBytes, describe
from herring.torch.watch import registrations


class DistributedDataParallel(InRounds, torch.nn.Module):
    """Wraps a module so that `backward()` returns with gradients averaged over all ranks.

    With a `group` all ranks are those of the group, here and everywhere below. A model may consist
    of parts that are wrapped one by one, each with a group of its own.

    At construction parameters and buffers become those of rank 0. Each gradient is put in its
    place as autograd produces it, and sent while the backward pass goes on. Parameters that this
    rank did not use in a step get the others' average; a parameter that no rank used keeps `.grad`
    None. Each step may use other parameters, and parameters may be frozen and unfrozen between
    steps, on all ranks alike.

    `state_dict()` has the keys of the wrapped module, without a prefix, so that checkpoints can be
    exchanged with it; `load_state_dict` also takes keys with the prefix "module.". Attributes that
    the wrapper lacks are looked up in the module. For evaluation on some ranks only, call the
    wrapper under `torch.no_grad()` or in eval mode, or call `ddp.module`. A copy (`deepcopy`,
    pickle) exchanges nothing until it is trained itself, which is then collective.

    Attributes:
      module: the wrapped module.
      name: prefix of the names of this wrapper's operations.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | str | torch.device] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        forward_sync_buffers: bool | None = None,
        wire_dtype: str | torch.dtype | None = None,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        sync: str | Quorum | Replay = "full",
        digest_every: int = 100,
        name: str | None = None,
        group: Group | None = None,
        **others: Any,
    ) -> None:
        """Compares the module across ranks, broadcasts it from rank 0, and plans (collective).

        The arguments up to `static_graph` are torch's, with torch's meaning.

        Args:
          module: on the CPU, or on a CUDA device (gradients then pass through the host).
          device_ids: None, or the one device that the module is on: inputs are moved there.
          output_device: None, or that device.
          dim: no meaning with one device per worker, as in torch.
          broadcast_buffers: give buffers (BatchNorm statistics) of rank 0 to all before each
            forward pass in training mode with gradients enabled; by default True.
          init_sync: False: do not compare and broadcast at construction; parameters and buffers
            are equal on all ranks already.
          process_group: None, or torch's default group: all workers. For some of them: `group`.
          bucket_cap_mb: `buffer_bytes` in MiB.
          find_unused_parameters: no need: they are always found, without a search.
          check_reduction: no meaning, as in torch.
          gradient_as_bucket_view: leave gradients where they were averaged: `.grad` becomes a view
            of the arena, which saves a copy and the memory for it. The next backward pass then
            overwrites gradients that were kept.
          static_graph: no need: each step may use other parameters.
          forward_sync_buffers: newer name of `broadcast_buffers`.
          wire_dtype: "bfloat16" or "float16" sends float32 gradients in half the bytes.
          buffer_bytes: size of a fusion buffer; 0 lets the plan choose.
          sparse: "keep" exchanges the rows of sparse gradients, which stay sparse; "densify" makes
            them dense, with one warning; "error" refuses them.
          sync: "full", or "solo", "majority", a `herring.Quorum` or a `herring.Replay`: gradients
            are then exchanged in rounds that do not wait for every worker (`rounds`,
            docs/partial.md). wire_dtype and buffer_bytes have no meaning there, and buffers are
            broadcast by `flush` alone.
          digest_every: in those modes, rounds after which a digest of the parameters is compared
            across ranks; 0: never.
          name: the same on every rank; None numbers the wrappers of a group in order of
            construction.
          group: from `herring.new_group`: the workers that train this module; None: all.
          **others: what else torch takes (`mixed_precision`, `device_mesh` ...): None, or refused.

        Raises:
          InvalidArgumentError: a parameter that cannot be averaged, an unknown option, an argument
            of torch's whose meaning cannot be kept, or this rank is not in the group; the message
            gives the reason.
          MismatchError: names, shapes, dtypes or options differ between ranks.
        """
        super().__init__()
        check_module(module)
        text_of(sparse, "sparse", ("keep", "densify", "error"))
        check_torch_arguments(others)
        check_process_group(process_group, group)
        del dim, find_unused_parameters, check_reduction, static_graph
        buffer_bytes = buffer_bytes_of(bucket_cap_mb, buffer_bytes)
        if forward_sync_buffers is None:
            forward_sync_buffers = broadcast_buffers is None or broadcast_buffers
        self._membership = Membership(group)
        self.name = named_call(name, "ddp", group)
        self.module = module
        self._device = input_device(module, device_ids, output_device)
        self._broadcast_buffers = bool(forward_sync_buffers)
        self._options = {
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "sparse": sparse,
            "views": gradient_as_bucket_view,
        }
        self._rest()
        partial = wants_rounds(sync, wire_dtype, buffer_bytes, group)
        named = list(module.named_parameters())
        if sparse == "error":
            self._refuse_sparse()
        if init_sync:
            require_agreement(
                [
                    f"broadcast_buffers={self._broadcast_buffers} sync={sync!r}",
                    *(describe(key, parameter) for key, parameter in named),
                    *(describe(f"buffer {key}", buffer) for key, buffer in module.named_buffers()),
                ],
                what="entry",
                name=f"{self.name}.module",
                group=group,
            )
            broadcast_tensors(self._state(), 0, name=f"{self.name}.state", group=group)
        if partial:
            self._partial = PartialReducer(
                named, name=self.name, sync=sync, digest_every=digest_every, group=group
            )
        else:
            self._make_reducer()
        self.register_state_dict_post_hook(_drop_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def _rest(self) -> None:
        """The state of a wrapper that takes part in nothing yet."""
        self._join: Join | None = None
        self._flat_buffers: FlatBytes | None = None
        self._partial: PartialReducer | None = None
        self._reducer: GradientReducer | None = None
        self._arm = self._make_output_hook()
        self._buffer_homes = [
            (owner, key)
            for owner in self.module.modules()
            for key, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def _make_reducer(self) -> None:
        module = self.module
        self._reducer = GradientReducer(
            list(module.named_parameters()),
            name=self.name,
            sparse_parameters=[child.weight for _, child in _sparse_modules(module)],
            relist=registrations.watch(module),
            group=self._group(),
            **self._options,
        )

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Calls the module; in training with gradients, prepares this step's averaging."""
        self._before_forward()
        if self._device is not None:
            inputs, kwargs = moved(inputs, self._device), moved(kwargs, self._device)
        output = self.module(*inputs, **kwargs)
        if torch.is_grad_enabled() and self._partial is None:
            self._after_forward(output)
        return output

    @torch._disable_dynamo  # exchanges data; torch.compile runs it as it is
    def _before_forward(self) -> None:
        stepping = torch.is_grad_enabled() and not in_backward()  # not a checkpoint's second run
        if self._partial is not None:
            if stepping and self._partial.pending and self._partial.enabled:
                raise InvalidArgumentError(
                    f"{self.name}: the gradients of the last backward pass were not exchanged; "
                    "with sync=... follow it by 'for _ in model.rounds(): optimizer.step()'"
                )
        elif stepping and self._reducer is not None and self._reducer.enabled:
            self._recover()
            root = 0
            if self._join is not None:
                root = self._join.active_ranks(active=True)[0]
            if self.training:
                self._sync_buffers(root)

    @torch._disable_dynamo
    def _after_forward(self, output: Any) -> None:
        for tensor in _tensors(output):
            # A leaf would keep its hooks for ever, and what is returned again has one already.
            if tensor.grad_fn is not None:
                hooks = tensor._backward_hooks
                if hooks is None or self._arm not in hooks.values():
                    tensor.register_hook(self._arm)

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
        if self._reducer is None:
            self._make_reducer()
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
        reducer = self._partial or self._reducer
        return 0 if reducer is None else reducer.contributors

    def close(self) -> None:
        """Removes the hooks and ends the plan; the module stays usable by itself."""
        reducer = self._partial or self._reducer
        if reducer is not None:
            reducer.close()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)

    def __getstate__(self) -> dict[str, Any]:
        if self._partial is not None:
            raise InvalidArgumentError(
                "with a partial sync copy or save ddp.module, or its state_dict(), not the wrapper"
            )
        state = self.__dict__.copy()
        for key in ("_join", "_flat_buffers", "_partial", "_reducer", "_arm", "_buffer_homes"):
            del state[key]
        state["name"] = f"{self.name.removesuffix('.copy')}.copy"
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rest()

    # -- for join and for itself ------------------------------------------------------------------

    def _group(self) -> Group | None:
        return self._membership.group()

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
        # As in torch, autograd does not learn of it: BatchNorm saves its statistics without using
        # them, so a second forward pass before backward() must not make it complain.
        unseen = [buffer.data for buffer in buffers]
        broadcast_tensors(
            unseen,
            root,
            name=f"{self.name}.buffers",
            flat=self._flat_buffers,
            group=self._group(),
        )

    def _shadow(self, root: int) -> None:
        """One step of the others, on a rank that has left `join`."""
        if self.training:
            self._sync_buffers(root)
        self._reducer.shadow()

    def _recover(self) -> None:
        self._reducer.abandon(stacklevel=8)  # past Module.__call__

    def _refuse_sparse(self) -> None:
        for key, _ in _sparse_modules(self.module):
            raise InvalidArgumentError(
                f"module {key!r} makes sparse gradients, and sparse='error' was asked for; "
                "build it with sparse=False, or pass sparse='keep' or 'densify'"
            )

    def _make_output_hook(self) -> Callable[[torch.Tensor], None]:
        myself = weakref.ref(self)

        def hook(_gradient: torch.Tensor) -> None:
            # In the outermost pass, so that the round ends with it, whatever runs nested inside;
            # and also when no parameter at all is used on this rank.
            if (ddp := myself()) is not None:
                ddp._arm_round()

        return hook

    def _arm_round(self) -> None:
        if self._reducer is None:  # a copy, about to be trained for the first time
            if self._partial is not None or not accumulates(self.module.parameters()):
                return
            self._make_reducer()
        self._reducer.arm_from_output()


def _sparse_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for key, child in module.named_modules():
        if isinstance(child, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and child.sparse:
            yield key, child


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
