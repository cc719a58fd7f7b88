"""The process group: torch's collectives over a herring job or one of its groups."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Callable, TypeVar

import torch
import torch.distributed as dist

import herring
from herring import runtime
from herring.collectives import called, submit
from herring.errors import HerringError, InvalidArgumentError, MismatchError
from herring.torch.backend.messages import Messages
from herring.torch.backend.others import other_backend
from herring.torch.backend.outside import outside_graphs
from herring.torch.backend.reductions import Reduction, divided, movable, reduction_of, typed
from herring.torch.backend.sparse import SparseSum
from herring.torch.backend.tensors import (
    Blocks,
    as_dense,
    copy_back,
    first_tensor,
    limit_of,
    list_of,
    operator_of,
    option,
    packs,
)
from herring.torch.backend.works import JoinedWork, Operations, OperationWork, Owner

__all__ = ["HerringProcessGroup"]

_GOODBYE = 10.0  # seconds for which the end of a job waits for the other ranks

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _routed(method: _Method) -> _Method:
    """Hands calls with tensors on a device that another backend serves to that backend."""

    @outside_graphs
    @functools.wraps(method)
    def call(self: HerringProcessGroup, *arguments: Any, **options: Any) -> Any:
        tensor = first_tensor(arguments) if arguments else first_tensor(options.values())
        other = None if tensor is None else self._other(tensor.device.type)
        if other is not None:
            return getattr(other, method.__name__)(*arguments, **options)
        work = method(self, *arguments, **options)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    return call  # type: ignore[return-value]


class HerringProcessGroup(dist.ProcessGroup):
    """What ``init_process_group("herring")`` and ``new_group`` make.

    Ranks call a group's collectives in the same order; each is numbered. Messages are told apart by
    sender and tag.

    Args:
      store: of torch, for backends of other devices.
      rank: of this process inside the group.
      size: how many ranks it has.
      timeout: of operations.
      ranks: of the job, in the group's order; empty: all.
      owns: destroying it ends the job.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        ranks: Sequence[int],
        owns: bool,
    ) -> None:
        super().__init__(rank, size)
        self._store = store
        self._limit = timeout
        self._job = runtime.job()
        self._owns = owns
        self._world = not ranks
        self._group = None if self._world else herring.new_group(
            ranks, timeout=max(timeout.total_seconds(), 1e-3)
        )
        # The core numbers the ranks of a group in the order of their ranks in the job.
        ascending = sorted(ranks)
        self._places = [ascending.index(one) for one in ranks] or list(range(size))
        self._blocks = Blocks(self._places)
        self._calls = 0
        self._lock = threading.Lock()
        self._coalesced: list[Any] | None = None
        self._devices: dict[str, str] | None = None
        self._others: dict[str, Any] = {}
        self._owner = Owner()  # no circle: what is destroyed goes at once, not in a forked child
        self._names = {"name": "", "description": "undefined"}
        self._messages = Messages(self._owner, self._group, self._places, rank)

    # What torch asks about.

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which it is registered."""
        return "herring"

    # torch keeps names with backends that are registered on a group, and this one may have none.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Torch's name of the group."""
        self._names["name"] = name

    def getGroupName(self) -> str:  # noqa: N802
        """What `setGroupName` was given."""
        return self._names["name"]

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        """What the group is for."""
        self._names["description"] = text

    def getGroupDesc(self) -> str:  # noqa: N802
        """What `setGroupDesc` was given."""
        return self._names["description"]

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

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_sequence_number_for_group(self) -> None:
        """Calls are numbered from 0 anyway."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the timeout of later operations."""
        self._limit = timeout

    _set_default_timeout = set_timeout

    def _device_map(self) -> dict[str, str]:
        """Which backend serves which kind of device, as `init_process_group` was told."""
        if self._devices is None:
            try:
                config = dist.get_backend_config(self)
            except (AssertionError, ValueError, RuntimeError, KeyError):
                return {"cpu": "herring", "cuda": "herring"}  # torch does not know it yet
            pairs = [pair.split(":") for pair in config.split(",")]
            self._devices = {kind: name for kind, name in pairs}
        return self._devices

    def _other(self, kind: str) -> Any:
        """The backend of a kind of device; None: herring.

        It is made with its first use, which is collective as all calls are.
        """
        name = self._device_map().get(kind, "")
        if name == "herring":
            return None
        if kind not in self._others:
            place = self.rank(), self.size()
            self._others[kind] = other_backend(self, kind, name, self._store, *place, self._limit)
        return self._others[kind]

    # How operations are started.

    def _name(self) -> str:
        with self._lock:
            number = self._calls
            self._calls += 1
        return f"torch.{number}"

    @contextmanager
    def _call(self, kind: str) -> Iterator[str]:
        """Yields the name of the next call; if this rank refuses it in the block, all hear why."""
        if self._owner.aborted:
            raise HerringError(self._owner.aborted)
        with called(kind, self._name(), self._group) as name:
            yield name

    def _start(self, kind: str, tensor: Any, name: str, options: Any, **more: Any) -> Any:
        waits = not option(options, "asyncOp", True)
        limit = limit_of(option(options, "timeout", None), self._limit)
        return submit(kind, tensor, name, limit, self._group, waits=waits, **more)

    def _work(self, options: Any, operations: Operations, outputs: Any, then: Any = None) -> Any:
        follow = bool(option(options, "asyncOp", True))
        return OperationWork(self._owner, operations, outputs, then, follow=follow)

    # Reductions.

    @_routed
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """Reduces a tensor over all ranks, in place.

        Args:
          tensors: a tensor, or a list of one; any shape, dtype, layout and strides.
          opts: operator and timeout.
          timeout: in place of that of `opts`.

        Returns:
          The work; its outputs are the tensors.

        Raises:
          InvalidArgumentError: the dtype has no such operator; all ranks raise, at `wait`.
        """
        del timeout  # deprecated by torch: options have it
        tensors = list_of(tensors)
        if len(tensors) != 1:
            return self.allreduce_coalesced(tensors, opts)
        return self._allreduce(tensors[0], tensors, opts)

    def _allreduce(self, tensor: torch.Tensor, outputs: list[torch.Tensor], opts: Any) -> Any:
        if tensor.layout == torch.sparse_coo:
            with self._call("allgather") as name:
                steps = SparseSum(tensor, operator_of(opts), self.size())
            first = self._start("allgather", steps.indices, name, opts)
            second = self._start("allgather", steps.values, f"{name}.values", opts)
            return self._work(opts, [first, second], outputs, steps.finish)
        with self._call("allreduce") as name:
            reduction = reduction_of(operator_of(opts), tensor.dtype, self.size())
            host = as_dense(tensor)
        if reduction.fold is not None:
            return self._folded(reduction, host, tensor, outputs, name, opts)
        operation = self._start(
            "allreduce",
            reduction.wire(host),
            name,
            opts,
            op=reduction.op,
            prescale=reduction.prescale,
        )
        if host.data_ptr() == tensor.data_ptr() and reduction.divisor == 1:
            return self._work(opts, [operation], outputs)

        def then(_: Operations) -> None:
            copy_back(tensor, divided(host, reduction.divisor))

        return self._work(opts, [operation], outputs, then)

    def _folded(
        self,
        reduction: Reduction,
        host: torch.Tensor,
        tensor: torch.Tensor,
        outputs: list[torch.Tensor],
        name: str,
        opts: Any,
    ) -> Any:
        """An operator that the core has not: each rank reduces a part, then all gather the parts.

        The same bytes on the wire as a ring, and folds in rank order: the same bits on all ranks.
        """
        ranks, flat = self.size(), movable(host)
        width = flat.numel() // max(host.numel(), 1)
        counts = [host.numel() // ranks + (r < host.numel() % ranks) for r in range(ranks)]
        splits = [count * width for count in counts]
        first = self._start("alltoall", flat, name, opts, splits=splits)

        def fold(operations: Operations) -> Any:
            mine = typed(operations[0].result(), tensor.dtype).view(ranks, -1)
            part = movable(reduction.fold(mine))  # type: ignore[misc]
            second = self._start("allgather", part, f"{name}.parts", None)
            return [second], finish

        def finish(operations: Operations) -> None:
            copy_back(tensor, typed(operations[0].result(), tensor.dtype))

        return self._work(opts, [first], outputs, fold)

    @_routed
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduces several tensors over all ranks, in place; small ones of a dtype travel as one."""
        works = []
        for pack in packs(list_of(tensors)):
            if len(pack.tensors) == 1:
                works.append(self._allreduce(pack.tensors[0], pack.tensors, opts))
                continue
            flat = pack.joined()
            with self._call("allreduce") as name:
                reduction = reduction_of(operator_of(opts), flat.dtype, self.size())
            if reduction.fold is not None or reduction.divisor != 1:
                works += [self._allreduce(tensor, [tensor], opts) for tensor in pack.tensors]
                continue
            more = {"op": reduction.op, "prescale": reduction.prescale}
            operation = self._start("allreduce", reduction.wire(flat), name, opts, **more)
            works.append(self._work(opts, [operation], pack.tensors, pack.spread(flat)))
        return works[0] if len(works) == 1 else JoinedWork(self._owner, works)

    @_routed
    def reduce(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Reduces a tensor over all ranks, and leaves the result in that of the root."""
        (tensor,) = tensors = list_of(tensors)
        root = self._root(opts)
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), tensor.dtype, self.size())
            host = as_dense(tensor)
        return self._scattered(reduction, host, self._all_to(root, host), tensor, tensors, name, opts)

    def _scattered(
        self,
        reduction: Reduction,
        host: torch.Tensor,
        counts: list[int],
        output: torch.Tensor,
        outputs: list[torch.Tensor],
        name: str,
        opts: Any,
    ) -> Any:
        """A reduction of which each rank gets its part, of `counts` elements of `host`."""
        mine = counts[self._places[self.rank()]]
        if reduction.fold is not None:
            flat = movable(host)
            width = flat.numel() // max(host.numel(), 1)
            splits = [count * width for count in counts]
            operation = self._start("alltoall", flat, name, opts, splits=splits)
        else:
            wire = reduction.wire(host).reshape(-1)
            width = wire.numel() // max(host.numel(), 1)
            splits = [count * width for count in counts]
            more = {"op": reduction.op, "prescale": reduction.prescale, "splits": splits}
            operation = self._start("reduce_scatter", wire, name, opts, **more)

        def then(operations: Operations) -> None:
            if mine == 0:
                return
            found = typed(operations[0].result(), output.dtype)
            if reduction.fold is not None:
                found = reduction.fold(found.view(self.size(), -1))
            copy_back(output, divided(found, reduction.divisor))

        return self._work(opts, [operation], outputs, then)

    @_routed
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Reduces lists of tensors over all ranks; rank r gets the r-th result.

        Args:
          outputs: a list of one tensor, for this rank's result.
          inputs: a list of one list with a tensor per rank; sizes may differ between ranks, and
            must be the same on all of them.
          opts: operator and timeout.
        """
        outputs = list_of(outputs)
        lists = inputs if isinstance(inputs[0], (list, tuple)) else [inputs]
        return self._joined(
            [self._reduce_blocks(out, blocks, opts) for out, blocks in zip(outputs, lists)]
        )

    def _reduce_blocks(self, output: torch.Tensor, blocks: Sequence[torch.Tensor], opts: Any) -> Any:
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), output.dtype, self.size())
            self._require_one_each(blocks, "reduce_scatter")
            self._require_size(blocks[self.rank()], output, "reduce_scatter")
            host, counts = self._blocks.joined(blocks)
        return self._scattered(reduction, host, counts, output, [output], name, opts)

    @_routed
    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Reduces a tensor over all ranks; rank r gets its r-th part, of the size of `output`."""
        with self._call("reduce_scatter") as name:
            reduction = reduction_of(operator_of(opts), output.dtype, self.size())
            if input.numel() != output.numel() * self.size() or input.dtype != output.dtype:
                raise InvalidArgumentError(
                    f"reduce_scatter: the input has {input.numel()} elements of {input.dtype}; it "
                    f"must have {self.size()} times the {output.numel()} of the output, of "
                    f"{output.dtype}"
                )
            host, counts = self._blocks.equal(as_dense(input).reshape(-1))
        return self._scattered(reduction, host, counts, output, [output], name, opts)

    _reduce_scatter_base = reduce_scatter_single

    @_routed
    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several `reduce_scatter_single`."""
        works = [self._plain(self.reduce_scatter_single, o, i, opts) for o, i in zip(outputs, inputs)]
        return self._joined(works)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # What only moves.

    @_routed
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copies tensors of the root to all ranks, in place."""
        root = self._places[self._root(opts)]
        works = []
        for tensor in list_of(tensors):
            with self._call("broadcast") as name:
                host = as_dense(tensor)
            operation = self._start("broadcast", movable(host), name, opts, root=root)
            then = None
            if host.data_ptr() != tensor.data_ptr():
                then = functools.partial(_take, tensor, host)
            works.append(self._work(opts, [operation], [tensor], then))
        return self._joined(works)

    @_routed
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Gathers tensors of all ranks; sizes may differ between ranks.

        Args:
          outputs: a list of one list with a tensor per rank.
          inputs: a list of one tensor.
          opts: timeout.
        """
        lists = outputs if isinstance(outputs[0], (list, tuple)) else [outputs]
        works = []
        for blocks, tensor in zip(lists, list_of(inputs)):
            with self._call("allgather") as name:
                self._require_one_each(blocks, "allgather")
                flat = movable(as_dense(tensor))
            operation = self._start("allgather", flat, name, opts)
            works.append(self._work(opts, [operation], list(blocks), self._spread(blocks)))
        return self._joined(works)

    allgather_coalesced = allgather

    @_routed
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Gathers a tensor of all ranks into one, in rank order."""
        with self._call("allgather") as name:
            if output.numel() != input.numel() * self.size() or input.dtype != output.dtype:
                raise InvalidArgumentError(
                    f"allgather: the output has {output.numel()} elements of {output.dtype}; it "
                    f"must have {self.size()} times the {input.numel()} of the input, of "
                    f"{input.dtype}"
                )
            flat = movable(as_dense(input))
        operation = self._start("allgather", flat, name, opts)

        def then(operations: Operations) -> None:
            found = typed(operations[0].result(), output.dtype)
            copy_back(output, self._blocks.sorted(found))

        return self._work(opts, [operation], [output], then)

    _allgather_base = all_gather_single

    @_routed
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several `all_gather_single`."""
        works = [self._plain(self.all_gather_single, o, i, opts) for o, i in zip(outputs, inputs)]
        return self._joined(works)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @_routed
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Gathers tensors of all ranks at the root, which has a list of one list for them."""
        (tensor,) = list_of(inputs)
        root = self._root(opts)
        blocks: list[torch.Tensor] = []
        with self._call("alltoall") as name:
            if self.rank() == root:
                blocks = list(outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs)
                self._require_one_each(blocks, "gather")
            flat = movable(as_dense(tensor))
            splits = self._all_to(root, flat)
        more = {"splits": splits, "root": self._places[root]}
        operation = self._start("alltoall", flat, name, opts, **more)
        then = self._spread(blocks) if blocks else None
        return self._work(opts, [operation], blocks, then)

    @_routed
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Hands each rank one tensor of the list of one list that the root has."""
        (output,) = list_of(outputs)
        root = self._root(opts)
        with self._call("alltoall") as name:
            flat, splits = movable(torch.empty(0, dtype=output.dtype)), [0] * self.size()
            if self.rank() == root:
                blocks = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
                self._require_one_each(blocks, "scatter")
                flat, splits = self._blocks.joined([movable(as_dense(one)) for one in blocks])
        more = {"splits": splits, "root": self._places[root]}
        operation = self._start("alltoall", flat, name, opts, **more)

        def then(operations: Operations) -> None:
            copy_back(output, _sized(typed(operations[0].result(), output.dtype), output))

        return self._work(opts, [operation], [output], then)

    @_routed
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Sends the r-th tensor of a list to rank r; the r-th output comes from there."""
        with self._call("alltoall") as name:
            self._require_one_each(inputs, "alltoall")
            self._require_one_each(outputs, "alltoall")
            flat, splits = self._blocks.joined([movable(as_dense(one)) for one in inputs])
        operation = self._start("alltoall", flat, name, opts, splits=splits)
        return self._work(opts, [operation], list(outputs), self._spread(outputs))

    @_routed
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        """Sends the r-th part of a tensor's first dimension to rank r.

        Args:
          output: [rows, ...]: the parts that come in, in rank order.
          input: [rows, ...].
          output_splits: rows from each rank; empty: equal parts.
          input_splits: rows for each rank; empty: equal parts.
          opts: timeout.
        """
        with self._call("alltoall") as name:
            pieces = self._parts(as_dense(input), input_splits, "input")
            flat, splits = self._blocks.joined([movable(one) for one in pieces])
            target = output if output.is_contiguous() else torch.empty_like(output).contiguous()
            parts = self._parts(target, output_splits, "output")
        operation = self._start("alltoall", flat, name, opts, splits=splits)
        spread = self._spread(parts)

        def then(operations: Operations) -> None:
            spread(operations)
            if target is not output:
                copy_back(output, target)

        return self._work(opts, [operation], [output], then)

    alltoall_base = all_to_all_single

    @_routed
    def barrier(self, opts: Any = None, *_: Any) -> Any:
        """Is complete when every rank has called it."""
        with self._call("barrier") as name:
            pass
        return self._work(opts, [self._start("barrier", None, name, opts)], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when every rank has called it; the error names those that have not."""
        del wait_all_ranks  # all that are missing are named anyway
        opts = dist.BarrierOptions()
        opts.timeout = timeout or self._limit
        self.barrier(opts).wait()

    # Messages.

    @_routed
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Sends a tensor to a rank of the group; complete when that receives it."""
        (tensor,) = list_of(tensors)
        return self._messages.send(tensor, dst, tag, self._limit)

    @_routed
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receives a tensor of the same dtype and size from a rank of the group."""
        (tensor,) = list_of(tensors)
        return self._messages.receive(tensor, src, tag, self._limit)

    @_routed
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives a tensor from any other rank of the group."""
        (tensor,) = list_of(tensors)
        return self._messages.receive(tensor, None, tag, self._limit)

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(self._owner, works)

    # The end.

    def shutdown(self) -> None:
        """Leaves the group; that of all ranks ends the job if it has begun it."""
        self._others.clear()
        with suppress(RuntimeError):
            super().shutdown()  # backends of other devices
        if not runtime.is_initialized() or runtime.job() is not self._job:
            return
        if self._group is not None:
            with suppress(HerringError):  # something is in flight: it ends with the job
                self._group.destroy()
        elif self._owns:
            self._say_goodbye()
            runtime.shutdown()

    def _say_goodbye(self) -> None:
        """Waits for the others, for a while: some may still need this rank's servers."""
        if self._owner.aborted or sys.exc_info()[0] is not None:
            return  # they learn of it the sooner
        with suppress(HerringError):
            submit("barrier", None, "torch.goodbye", _GOODBYE, None).wait()

    def abort(self) -> None:
        """Fails what is under way: on this rank, or for the group of all ranks everywhere."""
        self._owner.aborted = f"the process group of rank {self.rank()} was aborted"
        if self._world and runtime.is_initialized() and runtime.job() is self._job:
            runtime.abort(f"{self._owner.aborted}, torch.distributed's group of all ranks")
            if self._owns:
                runtime.shutdown()

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

    def _require_one_each(self, blocks: Sequence[torch.Tensor], kind: str) -> None:
        if len(blocks) != self.size():
            raise InvalidArgumentError(
                f"{kind}: the list has {len(blocks)} tensors; it must have one for each of "
                f"{self.size()} ranks"
            )

    def _require_size(self, given: torch.Tensor, output: torch.Tensor, kind: str) -> None:
        if given.numel() != output.numel() or given.dtype != output.dtype:
            raise InvalidArgumentError(
                f"{kind}: the output has {output.numel()} elements of {output.dtype}; it must have "
                f"{given.numel()} of {given.dtype}"
            )

    def _parts(self, tensor: torch.Tensor, splits: Any, what: str) -> list[torch.Tensor]:
        """A contiguous tensor cut along its first dimension, one part per rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        splits = [int(n) for n in splits or ()]
        if not splits and rows % self.size() == 0:
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows or min(splits) < 0:
            raise InvalidArgumentError(
                f"alltoall: {what}_split_sizes is {splits or None}; it must be {self.size()} counts "
                f"that sum to {rows}, or None if all are equal"
            )
        return list(tensor.split(splits)) if tensor.dim() else [tensor]

    def _spread(self, outputs: Sequence[torch.Tensor]) -> Callable[[Operations], None]:
        """Copies what has come in from each rank to its place."""

        def then(operations: Operations) -> None:
            data, at = typed(operations[0].result(), torch.uint8), 0
            found = [0] * self.size()
            kinds = [output.element_size() for output in outputs]
            total = sum(kind * output.numel() for kind, output in zip(kinds, outputs))
            width = data.numel() // max(sum(operations[0].counts), 1)
            for rank in self._blocks.order:  # those of the core's places, one after the other
                bytes_ = int(operations[0].counts[self._places[rank]]) * width
                output, found[rank] = outputs[rank], bytes_
                if bytes_ != output.numel() * output.element_size():
                    raise MismatchError(
                        f"rank {rank} has sent {bytes_} bytes, and the tensor for them has "
                        f"{output.numel()} elements of {output.dtype} (of {total} bytes in all)"
                    )
                copy_back(output, data[at : at + bytes_].view(output.dtype))
                at += bytes_

        return then


def _take(tensor: torch.Tensor, host: torch.Tensor, _: Operations) -> None:
    copy_back(tensor, host)


def _sized(found: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    if found.numel() == output.numel():
        return found
    raise MismatchError(
        f"scatter: the root has sent {found.numel()} elements, and the tensor for them has "
        f"{output.numel()}"
    )
