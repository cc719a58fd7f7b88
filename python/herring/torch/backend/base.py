"""The base of the process group: its ranks, the start of operations, and its end."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import herring
from herring.arrays import runtime
from herring.arrays.calls import CallOptions, called
from herring.arrays.names import next_name
from herring.arrays.operations import submit
from herring.base.units import counted
from herring.errors import ConfigurationError, HerringError, InvalidArgumentError, PeerLostError
from herring.torch.backend.face import add_face
from herring.torch.backend.hooks import Hooks
from herring.torch.backend.listed import given
from herring.torch.backend.messages import Messages
from herring.torch.backend.others import other_backend
from herring.torch.backend.outside import outside_graphs
from herring.torch.backend.tensors import Blocks, first_tensor, limit_of, option
from herring.torch.backend.works import JoinedWork, Operations, OperationWork, Owner
from herring.torch.backend.wrapped import taken_apart
from herring.torch.hook_calls import current_hook_call
from herring.torch.ranges import profiling, work_range

_GOODBYE = 10.0  # seconds that the end of a job waits for the other ranks, and for hooks
_CANNOT_CHANGE = (
    "the members of this process group cannot change: only the default group can be reconfigured, "
    "and only if it was begun by init_process_group('herring', enable_reconfigure=True)"
)

# Methods that write to their first argument, and the core's collective for each ("": a message).
_KINDS = {
    **dict.fromkeys(("all_gather_single", "all_gather_single_coalesced"), "allgather"),
    **dict.fromkeys(("allgather", "allgather_coalesced"), "allgather"),
    **dict.fromkeys(("all_to_all_single", "alltoall"), "alltoall"),
    **dict.fromkeys(("gather", "gather_single", "scatter"), "alltoall"),
    **dict.fromkeys(("allreduce", "allreduce_coalesced"), "allreduce"),
    **dict.fromkeys(("reduce", "reduce_scatter"), "reduce_scatter"),
    **dict.fromkeys(("reduce_scatter_single", "reduce_scatter_single_coalesced"), "reduce_scatter"),
    **dict.fromkeys(("recv", "recv_anysource"), ""),
    "broadcast": "broadcast",
}

_Method = TypeVar("_Method", bound=Callable[..., Any])


def routed(method: _Method) -> _Method:
    """Passes calls with tensors on a device that another backend serves to that backend."""

    @outside_graphs
    @functools.wraps(method)
    def call(self: BaseProcessGroup, *arguments: Any, **options: Any) -> Any:
        tensor = first_tensor(arguments) if arguments else first_tensor(options.values())
        other = None if tensor is None else self._other(tensor.device.type)
        if other is not None:
            return getattr(other, method.__name__)(*arguments, **options)
        if parts := taken_apart(method.__name__, arguments, options):
            return JoinedWork(self._owner, [call(self, *part, **named) for part, named in parts])
        if method.__name__ in _KINDS:
            self._require_apart(method.__name__, arguments)
        work = method(self, *arguments, **options)
        if self._hooks.any:
            self._hooks.watch(work, method.__name__, self._calls)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    return call  # type: ignore[return-value]


class _Started(threading.local):
    """The name of the operation that a thread has started last, while a profiler records it."""

    name = ""


class BaseProcessGroup(dist.ProcessGroup):
    """A process group without collectives.

    Ranks call a group's collectives in the same order, and each call has a number. Messages are
    identified by sender and tag.

    Args:
      store: torch's store, for the backends of other devices.
      rank: The rank of this process inside the group.
      size: The number of ranks in the group.
      timeout: The timeout of operations.
      ranks: The group's ranks in the job, in the group's order; empty means all ranks of the job.
      owns: Whether destroying the group ends the job.
      ended: Why the group has no job yet; empty means that it belongs to the running job.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        ranks: Sequence[int],
        owns: bool,
        ended: str = "",
    ) -> None:
        super().__init__(rank, size)
        self._store = store
        self._limit = timeout
        self._world = not ranks
        self._lock = threading.Lock()
        self._started = _Started()
        self._hooks = Hooks()
        self._devices: dict[str, str] | None = None
        self._others: dict[str, Any] = {}
        self._names = {"name": "", "description": "undefined"}
        self._take_place(rank, size, ranks, owns, ended)
        add_face(self)

    def _take_place(
        self, rank: int, size: int, ranks: Sequence[int], owns: bool, ended: str
    ) -> None:
        """Begins with the members that a job or its end gives; the arguments are as above."""
        self._rank, self._size = rank, size
        self._job = None if ended else runtime.job()
        self._owns = owns
        self._group = (
            None
            if not ranks
            else herring.new_group(ranks, timeout=max(self._limit.total_seconds(), 1e-3))
        )
        # The core numbers the ranks of a group in the order of their ranks in the job.
        ascending = sorted(ranks)
        self._places = [ascending.index(one) for one in ranks] or list(range(size))
        self._blocks = Blocks(self._places)
        self._calls = 0
        self._coalesced: list[Any] | None = None
        # The owner makes no reference cycle, so a destroyed group is freed at once, and not in a
        # forked child.
        self._owner = Owner(ended)
        self._messages = Messages(self._owner, self._group, self._places, rank)

    # What torch asks for.

    def rank(self) -> int:
        """Returns the rank of this process inside the group."""
        return self._rank

    def size(self) -> int:
        """Returns the number of ranks in the group."""
        return self._size

    getRank, getSize = rank, size  # noqa: N815  # the names by which torch's C++ asks

    def getBackendName(self) -> str:  # noqa: N802
        """Returns the name under which the backend is registered."""
        return "herring"

    # torch keeps names with the backends registered on a group, but this group may have none.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Sets torch's name of the group."""
        self._names["name"] = name
        self._tell_name()

    def getGroupName(self) -> str:  # noqa: N802
        """Returns the name given to `setGroupName`."""
        return self._names["name"]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        """Sets the description of the group."""
        self._names["description"] = text
        self._tell_name()

    def getGroupDesc(self) -> str:  # noqa: N802
        """Returns the description given to `setGroupDesc`."""
        return self._names["description"]

    def _tell_name(self) -> None:
        """Lets the status of the job call the group what torch calls it."""
        if self._job is None:
            return
        name, text = self._names["name"], self._names["description"]
        described = text not in ("", "undefined")
        members = None if self._group is None else self._group.members()
        self._job.name_group(members, text if described else name)

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._device_map()]

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_tensor_alloc = False

    def _get_backend(self, device: Any) -> Any:
        return self._other(torch.device(device).type) or self

    get_backend = _get_backend

    def get_error(self) -> Any:
        """Returns torch's `ErrorType`: COMM_ERROR after the loss of a peer, else SUCCESS."""
        return c10d.ErrorType.SUCCESS if self.lost() is None else c10d.ErrorType.COMM_ERROR

    # Other members, from torch 2.14 on; see reconfiguring.py.

    supports_reconfigure = False

    def get_reconfigure_handle(self) -> str:
        """Raises ConfigurationError, because the members of the group cannot change."""
        raise ConfigurationError(_CANNOT_CHANGE)

    def reconfigure(self, opts: Any) -> Any:
        """Raises ConfigurationError, because the members of the group cannot change."""
        raise ConfigurationError(_CANNOT_CHANGE)

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Does nothing, because calls are numbered from 0 anyway."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""
        self._limit = timeout

    _set_default_timeout = set_timeout

    def _device_map(self) -> dict[str, str]:
        """Returns the backend of each kind of device, as given to `init_process_group`."""
        if self._devices is None:
            try:
                config = dist.get_backend_config(self)
            except (AssertionError, ValueError, RuntimeError, KeyError, TypeError):
                return {"cpu": "herring", "cuda": "herring"}  # torch does not know the group yet
            pairs = [pair.split(":") for pair in config.split(",")]
            self._devices = dict(pairs)
        return self._devices

    def _other(self, kind: str) -> Any:
        """Returns another backend for a kind of device; None if Herring serves it.

        The first use makes the backend, which is collective like every call.
        """
        name = self._device_map().get(kind, "")
        if name == "herring":
            return None
        if kind not in self._others:
            place = self.rank(), self.size()
            self._others[kind] = other_backend(
                self, kind, name, self._device_map(), self._store, *place, self._limit
            )
        return self._others[kind]

    # Hooks of torch, by the names that the version of torch has for them.

    supports_abort_hooks = True
    supports_completion_hooks = False  # those must not be called by a thread that runs Python

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Registers a function that is called before the group gives up.

        It is called on a timeout, when a peer is lost, and before `abort`.

        Args:
          hook_id: A number that identifies the hook.
          hook: A function without arguments. It may be called more than once.
        """
        self._hooks.on_abort(hook_id, hook)

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Removes an abort hook."""
        self._hooks.forget(hook_id)

    def _register_on_completion_hook(self, hook: Callable[[Any], None]) -> None:
        """Registers the function that is called with a `WorkInfo` after each work."""
        self._hooks.on_completion(hook)

    def _has_hooks(self) -> bool:
        return self._hooks.has_completion

    def _wait_for_pending_works(self) -> None:
        """Returns when the hooks were called for all works that have begun."""
        self._hooks.wait(self._limit.total_seconds())

    def _enable_collectives_timing(self) -> None:
        """Does nothing, because works that have a hook are timed anyway."""

    # The start of operations.

    def _name(self) -> str:
        with self._lock:
            self._calls += 1
        among = None if self._group is None else self._group.members().number
        hook_call = current_hook_call()
        return next_name("torch", among) if hook_call is None else hook_call.next_name(among)

    @contextmanager
    def _call(self, kind: str) -> Iterator[str]:
        """Yields the name of the next call; an exception in the block refuses it on all ranks."""
        if self._owner.aborted:
            raise self._owner.error()
        with called(kind, self._name(), self._group) as name:
            yield name

    def _start(
        self, kind: str, tensor: Any, name: str, options: Any, about: str = "", **more: Any
    ) -> Any:
        """Starts an operation; ranks must give the same `about`, which the core does not see."""
        waits = not option(options, "asyncOp", True)
        limit = limit_of(option(options, "timeout", None), self._limit)
        more |= {"waits": waits, "agreement": about}
        call = CallOptions(name, limit, self._group)
        if not profiling():
            return submit(kind, tensor, call, **more)
        self._started.name = name
        with work_range(kind, name):
            return submit(kind, tensor, call, **more)

    def _start_list(
        self, kind: str, flat: torch.Tensor, name: str, options: Any, about: str, **more: Any
    ) -> Any:
        """Starts an operation on the list of one tensor, which may lie on a GPU."""
        more |= {"listed": True, "anywhere": True}
        return self._start(kind, given(flat), name, options, about, **more)

    def _work(self, options: Any, operations: Operations, outputs: Any, then: Any = None) -> Any:
        follow = bool(option(options, "asyncOp", True))
        name = self._started.name
        self._started.name = ""
        return OperationWork(self._owner, operations, outputs, then, follow=follow, name=name)

    # The end of the group.

    def shutdown(self) -> None:
        """Leaves the group; if the group of all ranks has begun the job, the job ends."""
        if self._hooks.any:
            self._hooks.wait(_GOODBYE)
        self._messages.close()
        self._others.clear()
        with suppress(RuntimeError):
            super().shutdown()  # backends of other devices
        if not runtime.is_initialized() or runtime.job() is not self._job:
            return
        if self._group is not None:
            with suppress(HerringError):  # an operation is in flight and ends with the job
                self._group.destroy()
        elif self._owns:
            self._say_goodbye()
            runtime.shutdown()

    def _say_goodbye(self) -> None:
        """Waits for a while for the other ranks, which may still need this rank's servers."""
        if self._owner.aborted or sys.exc_info()[0] is not None:
            return  # the others then learn of the failure sooner
        # The barrier has no timeout of its own, which would count as a failure of the job.
        with suppress(HerringError):
            submit("barrier", None, CallOptions("torch.goodbye")).wait(_GOODBYE)

    def abort(self) -> None:
        """Fails operations under way on this rank; in the group of all ranks, on every rank."""
        self._hooks.group_is_lost()
        self._owner.abort(f"the process group of rank {self.rank()} was aborted")
        if self._world and runtime.is_initialized() and runtime.job() is self._job:
            runtime.abort(f"{self._owner.aborted}, torch.distributed's group of all ranks")
            if self._owns:
                runtime.shutdown()

    def leave(self, why: str, seconds: float) -> None:
        """Ends what this rank has of the group, and leaves the group's job if that has not ended.

        Works end with an error at once. What this rank has completed completes on all ranks.

        Args:
          why: The text of the errors.
          seconds: How long works that copy results at this moment may take.

        Raises:
          TimeoutError: They took longer.
        """
        self._owner.end(why, seconds)
        self._messages.close()
        if self._owns and runtime.is_initialized() and runtime.job() is self._job:
            runtime.shutdown()

    def lost(self) -> PeerLostError | None:
        """Returns the first error of a work because a peer was lost; None if there was none."""
        return self._owner.lost

    # Helpers.

    def _plain(self, method: Callable[..., Any], *arguments: Any) -> Any:
        return inspect.unwrap(method)(self, *arguments)  # type: ignore[attr-defined]

    def _joined(self, works: list[Any]) -> Any:
        return works[0] if len(works) == 1 else JoinedWork(self._owner, works)

    def _root(self, opts: Any) -> int:
        root = int(option(opts, "rootRank", opts if isinstance(opts, int) else 0))
        if not 0 <= root < self.size():
            raise InvalidArgumentError(f"root is {root}; it must be 0 to {self.size() - 1}")
        return root

    def _all_to(self, root: int, flat: torch.Tensor) -> list[int]:
        counts = [0] * self.size()
        counts[self._places[root]] = flat.numel()
        return counts

    def _require_apart(self, method: str, arguments: Sequence[Any]) -> None:
        """Refuses to write to elements that share memory, before anything is exchanged."""
        if not arguments or not _overlaps(arguments[0]):
            return
        if method == "reduce" and self.rank() != self._root(*arguments[1:2] or [None]):
            return  # this rank's tensor is not written
        text = (
            f"{method}: a tensor that gets the result has elements that share memory, as expand() "
            "makes them; pass tensor.contiguous() and use the result"
        )
        if not _KINDS[method]:
            raise InvalidArgumentError(text)
        with self._call(_KINDS[method]):
            raise InvalidArgumentError(text)

    def _require_one_each(self, blocks: Sequence[torch.Tensor], kind: str) -> None:
        if len(blocks) != self.size():
            raise InvalidArgumentError(
                f"{kind}: the list has {counted(len(blocks), 'tensor')}; it must have one for each "
                f"rank, {self.size()} in all"
            )

    def _require_size(self, given: torch.Tensor, output: torch.Tensor, kind: str) -> None:
        if given.numel() != output.numel() or given.dtype != output.dtype:
            raise InvalidArgumentError(
                f"{kind}: the output has {output.numel()} elements of {output.dtype}; it must have "
                f"{given.numel()} of {given.dtype}"
            )


def _overlaps(given: Any) -> bool:
    """Returns whether a tensor, or one in nested lists, has elements that share memory."""
    if isinstance(given, torch.Tensor):
        if given.layout != torch.strided or given.is_contiguous():
            return False
        return any(n > 1 and step == 0 for n, step in zip(given.shape, given.stride()))
    return isinstance(given, (list, tuple)) and any(map(_overlaps, given))
