"""DistributedDataParallel: a module whose gradients are averaged over all ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.arguments import text_of
from herring.arrays.calls import named as named_call
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError
from herring.partial import Quorum, Replay, RoundInfo
from herring.torch.arguments import (
    buffer_bytes_of,
    check_module,
    check_process_group,
    check_torch_arguments,
    input_device,
    moved,
)
from herring.torch.buffers import Buffers
from herring.torch.compiled import untraced
from herring.torch.engine import accumulates, in_backward
from herring.torch.join import Join
from herring.torch.membership import Membership
from herring.torch.partial import InRounds, PartialReducer, round_options
from herring.torch.reducer import GradientReducer
from herring.torch.residuals import KeepsResiduals
from herring.torch.state import broadcast_tensors
from herring.torch.tensors import TorchWireDType, describe, require_writable
from herring.torch.watch import registrations


class DistributedDataParallel(InRounds, KeepsResiduals, torch.nn.Module):
    """Wraps a module so that `backward()` returns with gradients averaged over all ranks.

    With a `group`, "all ranks" means the ranks of the group, here and below. A model may consist of
    parts that are wrapped one by one, each with its own group.

    At construction, parameters and buffers get the values of rank 0. Each gradient is copied to the
    arena when autograd produces it, and sent while the backward pass goes on. A parameter that this
    rank did not use in a step gets the average of the other ranks. A parameter that no rank used
    keeps `.grad` None. Each step may use other parameters. Parameters may be frozen and unfrozen
    between steps, on all ranks alike.

    What the module lists for torch's wrapper as `_ddp_params_and_buffers_to_ignore` is left alone:
    each rank keeps its own values and its own gradients.

    `state_dict()` has the keys of the wrapped module, without a prefix, so that checkpoints fit
    both. `load_state_dict` also takes keys with the prefix "module.". Attributes that the wrapper
    lacks are looked up in the module. For evaluation on some ranks only, call the wrapper under
    `torch.no_grad()` or in eval mode, or call `ddp.module`. A copy (`deepcopy`, pickle) exchanges
    nothing until it is trained itself, which is then collective.

    Attributes:
      module: The wrapped module.
      name: The prefix of the names of this wrapper's operations.
    """

    @untraced
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
        wire_dtype: TorchWireDType | None = None,
        error_feedback: bool = True,
        buffer_bytes: int = 0,
        sparse: str = "keep",
        sync: str | Quorum | Replay = "full",
        algorithm: str = "herring",
        results: str = "every",
        synchronize_every: int = 0,
        digest_every: int | None = None,
        name: str | None = None,
        group: Group | None = None,
        **others: Any,
    ) -> None:
        """Compares the module across ranks, broadcasts it from rank 0, and plans (collective).

        The arguments up to `static_graph` are torch's, with torch's meaning.

        Args:
          module: A module on the CPU or on a CUDA device. Gradients on a CUDA device pass through
            host memory.
          device_ids: None, or a list with the module's device, to which inputs are moved.
          output_device: None, or the device in `device_ids`.
          dim: Has no meaning with one device per worker, as in torch.
          broadcast_buffers: Whether all ranks get the buffers (BatchNorm statistics) of rank 0
            before each forward pass in training mode with gradients enabled. None means True.
          init_sync: False skips the comparison and the broadcast at construction. Parameters and
            buffers must then be equal on all ranks already.
          process_group: None, or torch's default group, which has all workers. Use `group` for some
            of the workers.
          bucket_cap_mb: `buffer_bytes` in MiB.
          find_unused_parameters: Not needed; unused parameters are always found, without a search.
          check_reduction: Has no meaning, as in torch.
          gradient_as_bucket_view: Whether `.grad` becomes a view of the arena. This saves a copy
            and its memory, but the next backward pass overwrites gradients that the user kept.
          static_graph: Not needed; each step may use other parameters.
          forward_sync_buffers: The newer name of `broadcast_buffers`.
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
          sync: "full" waits for every worker. "solo", "majority", a `herring.Quorum` or a
            `herring.Replay` exchanges gradients in rounds that do not (`rounds`, docs/partial.md).
            Such rounds take a `wire_dtype` of 16 bits only, and only `flush` broadcasts buffers.
          algorithm: Who closes the rounds and sums, with `sync` "solo" or "majority": "herring"
            (the servers), or "doubling", "butterfly", "ring", "tree" or "server" (the workers, by
            messages between them; docs/partial.md).
          results: With such a `sync`, "every": all ranks apply all results in order, and replicas
            stay equal. "latest": a rank that was late applies the newest result only, as in the
            paper; replicas then differ until they are averaged (docs/partial.md).
          synchronize_every: With results="latest", the number of rounds after which all ranks
            average their parameters; 0 means at the end, in `flush`, only.
          digest_every: With such a `sync`, the number of rounds after which ranks compare a digest
            of the parameters; 0 means never, and None 100 (0 with results="latest").
          name: The wrapper's name, the same on every rank. None numbers the wrappers of a group in
            order of construction.
          group: The `herring.Group` of workers that train this module; None means all workers.
          **others: Other arguments of torch (`mixed_precision`, `device_mesh` ...). They must be
            None.

        Raises:
          InvalidArgumentError: A parameter cannot be averaged, an option is unknown, the meaning of
            an argument of torch cannot be kept, or this rank is not in the group. The message gives
            the reason.
          MismatchError: Names, shapes, dtypes or options differ between ranks.
        """
        super().__init__()
        check_module(module, _ignored(module))
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
        self._options: dict[str, Any] = {
            "wire_dtype": wire_dtype,
            "error_feedback": error_feedback,
            "buffer_bytes": buffer_bytes,
            "sparse": sparse,
            "views": gradient_as_bucket_view,
        }
        self._rest()
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
        named = self._named_parameters(module)
        if sparse == "error":
            self._refuse_sparse()
        if init_sync:
            require_agreement(
                [
                    f"broadcast_buffers={self._broadcast_buffers} sync={sync!r}",
                    *(describe(key, parameter) for key, parameter in named),
                    *self._buffers_of_all.lines(),
                ],
                what="entry",
                name=f"{self.name}.module",
                group=group,
            )
            require_writable([*named, *self._buffers_of_all.named()], self.name)
            broadcast_tensors(self._state(), 0, name=f"{self.name}.state", group=group)
        if rounds is not None:
            relist = registrations.watch(module, self._named_parameters)
            self._partial = PartialReducer(named, name=self.name, options=rounds, relist=relist)
        else:
            self._make_reducer()
        self.register_state_dict_post_hook(_drop_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def _rest(self) -> None:
        """Sets the state of a wrapper that does not take part in anything yet."""
        self._join: Join | None = None
        self._partial: PartialReducer | None = None
        self._reducer: GradientReducer | None = None
        self._arm = self._make_output_hook()
        self._buffers_of_all = Buffers(self.module, _ignored(self.module))

    @staticmethod
    def _named_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
        ignored = _ignored(module)
        return [(name, p) for name, p in module.named_parameters() if name not in ignored]

    def _make_reducer(self) -> None:
        module = self.module
        self._reducer = GradientReducer(
            self._named_parameters(module),
            name=self.name,
            sparse_parameters=[child.weight for _, child in _sparse_modules(module)],
            relist=registrations.watch(module, self._named_parameters),
            group=self._group(),
            missing="forward",
            before_forward=weakref.WeakMethod(self._before_forward),
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

    @untraced
    def _before_forward(self) -> None:
        stepping = torch.is_grad_enabled() and not in_backward()  # not a checkpoint's second run
        if self._partial is not None:
            if stepping:
                self._partial.before_forward()
        elif stepping and self._reducer is not None and self._reducer.enabled:
            self._recover()
            root = 0
            if self._join is not None:
                root = self._join.active_ranks(active=True)[0]
            if self.training:
                self._sync_buffers(root)
            self._reducer.expect()

    @untraced
    def _after_forward(self, output: Any) -> None:
        for tensor in _tensors(output):
            # A leaf would keep its hooks for ever. A tensor that is returned again has the hook.
            if tensor.grad_fn is not None:
                hooks = tensor._backward_hooks
                if hooks is None or self._arm not in hooks.values():
                    tensor.register_hook(self._arm)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulates gradients locally in backward passes inside the block; nothing is sent.

        The next backward pass outside the block averages the sums. Only the place of `backward()`
        matters: a forward pass inside the block does not exchange buffers, or anything for `join`.
        """
        if self._partial is not None:
            with self._partial.paused():
                yield
            return
        if self._reducer is None:
            self._make_reducer()
        with self._reducer.paused():
            yield

    @untraced
    def rounds(self) -> Generator[RoundInfo]:
        """Follows each backward pass if `sync` is partial; yields once per round.

            for _ in model.rounds():
                optimizer.step()

        It contributes this rank's gradients. Then it leaves the results of rounds in `.grad`, one
        after the other, beginning with rounds that this rank missed. Clip gradients and step
        schedulers inside the loop: each iteration is one step, and all ranks make the same steps.
        With sync="full" it yields once, when the averages are in `.grad` already.

        Yields:
          What is known about the round (None with sync="full").
        """
        if self._partial is None:
            yield None
        else:
            yield from self._partial.steps()

    @untraced
    def flush(self) -> Generator[RoundInfo]:
        """Ends training if `sync` is partial; the last round is the same on all ranks.

        Ranks may have made different numbers of steps. A rank that flushes applies the results of
        the ranks that go on, until all ranks flush. Afterwards nothing is pending. If
        `broadcast_buffers` is set, all ranks then get the buffers of rank 0.

            for _ in model.flush():
                optimizer.step()

        Yields:
          What is known about the round, whose result is in `.grad`.
        """
        if self._partial is None:
            return
        info = None
        for info in self._partial.flush():
            yield info
        if self._broadcast_buffers and not (info and info.lost):
            self._sync_buffers(0)

    def join(self) -> Join:
        """Returns a context for uneven data: ranks without more batches let the others go on.

        Put the training loop of every rank inside. One backward pass must follow each forward pass
        in training. See `Join`.

        Raises:
          InvalidArgumentError: The wrapper was made with a partial `sync`.
        """
        if self._partial is not None:
            raise InvalidArgumentError(
                f"{self.name}: join() is for sync='full'; partial rounds do not need equal numbers "
                "of steps"
            )
        return Join(self)

    @property
    def contributors(self) -> int:
        """The number of workers whose gradients are in the last average."""
        reducer = self._partial or self._reducer
        return 0 if reducer is None else reducer.contributors

    def close(self) -> None:
        """Removes the hooks and ends the plan; the module stays usable on its own."""
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
        for key in ("_join", "_partial", "_reducer", "_arm", "_buffers_of_all"):
            del state[key]
        state["name"] = f"{self.name.removesuffix('.copy')}.copy"
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._rest()

    # -- internal, also for Join ------------------------------------------------------------------

    def _group(self) -> Group | None:
        return self._membership.group()

    def _state(self) -> list[torch.Tensor]:
        tensors = [parameter.detach() for _, parameter in self._named_parameters(self.module)]
        return tensors + [buffer for _, buffer in self._buffers_of_all.named()]

    def _sync_buffers(self, root: int) -> None:
        if self._broadcast_buffers:
            self._buffers_of_all.broadcast(root, name=f"{self.name}.buffers", group=self._group())

    def _shadow(self, root: int) -> None:
        """Takes part in one step of the other ranks, on a rank that has left `join`."""
        if self.training:
            self._sync_buffers(root)
        self._reducer.shadow()

    def _get_steps(self) -> int:
        return 0 if self._reducer is None else self._reducer.steps

    def _set_steps(self, steps: int) -> None:
        if self._reducer is not None:
            self._reducer.set_steps(steps)

    def _recover(self) -> None:
        self._reducer.abandon(stacklevel=6)  # points past Module.__call__

    def _refuse_sparse(self) -> None:
        for key, _ in _sparse_modules(self.module):
            raise InvalidArgumentError(
                f"module {key!r} makes sparse gradients, and sparse='error' was given; "
                "build it with sparse=False, or pass sparse='keep' or 'densify'"
            )

    def _make_output_hook(self) -> Callable[[torch.Tensor], None]:
        myself = weakref.ref(self)

        def hook(_gradient: torch.Tensor) -> None:
            # The hook runs in the outermost pass, so that the round ends with that pass even if
            # others are nested in it. It also runs if this rank uses no parameter at all.
            if (ddp := myself()) is not None:
                ddp._arm_round()

        return hook

    def _arm_round(self) -> None:
        if self._reducer is None:  # a copy that is trained for the first time
            if self._partial is not None or not accumulates(self.module.parameters()):
                return
            self._make_reducer()
        self._reducer.arm_from_output()


def _ignored(module: torch.nn.Module) -> frozenset[str]:
    """Returns the names of what each rank keeps for itself, by torch's convention."""
    return frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))


def _sparse_modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for key, child in module.named_modules():
        if isinstance(child, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and child.sparse:
            yield key, child


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields all tensors inside nested containers and dataclasses."""
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
