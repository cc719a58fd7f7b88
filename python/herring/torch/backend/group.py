"""The process group: torch's collectives over a job of Herring or one of its groups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from herring.arrays.calls import CallOptions
from herring.arrays.operations import submit
from herring.base.units import counted
from herring.errors import InvalidArgumentError, MismatchError, TimeoutError
from herring.torch import devices
from herring.torch.backend.base import routed
from herring.torch.backend.listed import gathered_bytes, result_of
from herring.torch.backend.monitored import failed_to_pass
from herring.torch.backend.reducing import ReducingProcessGroup
from herring.torch.backend.reductions import movable, place_for, typed
from herring.torch.backend.tensors import (
    as_dense,
    copy_back,
    dense_there,
    exchanges_lists,
    limit_of,
    list_of,
    option,
)
from herring.torch.backend.works import JoinedWork, Operations, back_to

# Parts of at least so many bytes are gathered in place, in groups of at most so many ranks.
_LARGE, _FEW = 1 << 20, 16


class HerringProcessGroup(ReducingProcessGroup):
    """The process group that ``init_process_group("herring")`` and ``new_group`` make."""

    @routed
    def broadcast(self, tensors: Any, opts: Any = None, *_: Any) -> Any:
        """Copies tensors of the root to all ranks, in place."""
        root = self._places[self._root(opts)]
        works = []
        for tensor in list_of(tensors):
            with self._call("broadcast") as name:
                host = dense_there(tensor, "broadcast")
            there = devices.gpu_of(host) is not None
            taken = devices.exported(movable(host)) if there else movable(host)
            operation = self._start("broadcast", taken, name, opts, root=root)
            works.append(
                self._work(opts, [operation], [tensor], back_to(taken, there, host, tensor))
            )
        return self._joined(works)

    @routed
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Gathers tensors of all ranks; sizes may differ between ranks.

        Args:
          outputs: A list of one list, which has a tensor for each rank.
          inputs: A list of one tensor.
          opts: Has the timeout.

        Returns:
          The work; its outputs are the tensors in `outputs`.
        """
        lists = outputs if isinstance(outputs[0], (list, tuple)) else [outputs]
        works = []
        for blocks, tensor in zip(lists, list_of(inputs)):
            with self._call("allgather") as name:
                self._require_one_each(blocks, "allgather")
                flat = movable(dense_there(tensor, "all_gather"))
            about = f"all_gather of {tensor.dtype}"
            if exchanges_lists(tensor):
                operation = self._start_list("allgather", flat, name, opts, about)
                then = self._spread_list(flat, blocks)
            else:
                operation = self._start("allgather", flat, name, opts, about)
                then = self._spread(blocks)
            works.append(self._work(opts, [operation], list(blocks), then))
        return self._joined(works)

    @routed
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Gathers several tensors of each rank; ``outputs[rank][i]`` gets its i-th tensor."""
        tensors = list_of(inputs)
        if len(outputs) != self.size() or any(len(each) != len(tensors) for each in outputs):
            with self._call("allgather"):
                raise InvalidArgumentError(
                    f"all_gather_coalesced: outputs are lists of {[len(each) for each in outputs]} "
                    f"tensors; there must be one for each of {self.size()} ranks, with "
                    f"{counted(len(tensors), 'tensor')}"
                )
        works = [
            self._plain(self.allgather, [[each[i] for each in outputs]], [tensor], opts)
            for i, tensor in enumerate(tensors)
        ]
        return self._joined(works)

    @routed
    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Gathers a tensor of all ranks into one tensor, in rank order."""
        with self._call("allgather") as name:
            if output.numel() != input.numel() * self.size() or input.dtype != output.dtype:
                raise InvalidArgumentError(
                    f"allgather: the output has {output.numel()} elements of {output.dtype}; it "
                    f"must have {self.size()} times the {input.numel()} of the input, of "
                    f"{input.dtype}"
                )
            host = dense_there(input, "all_gather_into_tensor")
        about = f"all_gather of {input.dtype}"
        if exchanges_lists(input):
            return self._gathered_list(output, movable(host), name, opts, about)
        if self._gathers_in_place(output, host):
            return self._gathered_in_place(output, host, name, opts)
        into = place_for(output, host) if self._blocks.same else None
        operation = self._start("allgather", movable(host), name, opts, about, into=into)

        def then(operations: Operations) -> None:
            _require_same(name, operations[0].counts)
            if operations[0].placed:
                return
            found = typed(operations[0].result(), output.dtype)
            copy_back(output, self._blocks.sorted(found))

        return self._work(opts, [operation], [output], then)

    _allgather_base = all_gather_single

    def _gathered_list(
        self, output: torch.Tensor, flat: torch.Tensor, name: str, opts: Any, about: str
    ) -> Any:
        operation = self._start_list("allgather", flat, name, opts, about)

        def then(operations: Operations) -> None:
            sizes = gathered_bytes(operations[0])
            _require_same(name, [size // flat.element_size() for size in sizes])
            target = output.data if self._blocks.same and output.is_contiguous() else None
            into = None if target is None else movable(target)
            found = result_of(operations[0], flat, flat.numel() * self.size(), into)
            copy_back(output, self._blocks.sorted(found.view(output.dtype)))

        return self._work(opts, [operation], [output], then)

    def _gathers_in_place(self, output: torch.Tensor, host: torch.Tensor) -> bool:
        """Returns whether parts are gathered in place; all ranks decide alike."""
        large = host.numel() * host.element_size() >= _LARGE and self.size() <= _FEW
        return large and output.device.type == "cpu"

    def _gathered_in_place(
        self, output: torch.Tensor, host: torch.Tensor, name: str, opts: Any
    ) -> Any:
        """Gathers by a broadcast from each rank: the same bytes are sent, and none are copied."""
        target = output.data if output.is_contiguous() else torch.empty_like(output).contiguous()
        parts = movable(target).chunk(self.size())
        copy_back(parts[self.rank()], movable(host))
        operations = []
        for rank, part in enumerate(parts):
            root, called_ = self._places[rank], name if rank == 0 else f"{name}.{rank}"
            limit = limit_of(option(opts, "timeout", None), self._limit)
            call = CallOptions(called_, limit, self._group)
            operations.append(submit("broadcast", part, call, waits=False, root=root))
        then = (
            None
            if target.data_ptr() == output.data_ptr()
            else functools.partial(_take, output, target)
        )
        return self._work(opts, operations, [output], then)

    @routed
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Does several `all_gather_single` as one work."""
        works = [self._plain(self.all_gather_single, o, i, opts) for o, i in zip(outputs, inputs)]
        return self._joined(works)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    @routed
    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Gathers tensors of all ranks at the root, which has a list of one list for them."""
        (tensor,) = list_of(inputs)
        root = self._root(opts)
        blocks: list[torch.Tensor] = []
        with self._call("alltoall") as name:
            if self.rank() == root:
                blocks = list(outputs[0] if isinstance(outputs[0], (list, tuple)) else outputs)
                self._require_one_each(blocks, "gather")
            flat = movable(as_dense(tensor, "gather"))
            splits = self._all_to(root, flat)
        about = f"gather of {tensor.dtype} to rank {root}"
        operation = self._start("alltoall", flat, name, opts, about, splits=splits)
        then = self._spread(blocks) if blocks else None
        return self._work(opts, [operation], blocks, then)

    @routed
    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Any:
        """Gathers tensors of all ranks at the root into one tensor, in rank order."""
        root = self._root(opts)
        with self._call("alltoall") as name:
            if self.rank() == root and output.numel() != input.numel() * self.size():
                raise InvalidArgumentError(
                    f"gather: the output has {output.numel()} elements; it must have {self.size()} "
                    f"times the {input.numel()} of the input"
                )
            flat = movable(as_dense(input, "gather_single"))
            splits = self._all_to(root, flat)
        about = f"gather of {input.dtype} to rank {root}"
        operation = self._start("alltoall", flat, name, opts, about, splits=splits)

        def then(operations: Operations) -> None:
            if self.rank() != root:
                return
            found = typed(operations[0].result(), output.dtype)
            if found.numel() != output.numel():
                raise MismatchError(
                    f"{name}: ranks gave {list(operations[0].counts)} elements; gather_single "
                    "needs the same number from each"
                )
            copy_back(output, self._blocks.sorted(found))

        return self._work(opts, [operation], [output] if self.rank() == root else [], then)

    gather_into_tensor = gather_single

    @routed
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *_: Any) -> Any:
        """Hands each rank one tensor of the root's list, which is in a list of one list."""
        (output,) = list_of(outputs)
        root = self._root(opts)
        about = f"scatter of {output.dtype} from rank {root}"
        with self._call("alltoall") as name:
            nothing = torch.empty(0, dtype=output.dtype, device="cpu")
            flat, splits = movable(nothing), [0] * self.size()
            if self.rank() == root:
                blocks = inputs[0] if isinstance(inputs[0], (list, tuple)) else inputs
                self._require_one_each(blocks, "scatter")
                flat, splits = self._blocks.joined(
                    [movable(as_dense(one, "scatter")) for one in blocks], "scatter"
                )
        operation = self._start("alltoall", flat, name, opts, about, splits=splits)

        def then(operations: Operations) -> None:
            copy_back(output, _sized(typed(operations[0].result(), output.dtype), output))

        return self._work(opts, [operation], [output], then)

    @routed
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Sends the r-th tensor of a list to rank r; the r-th output comes from rank r."""
        with self._call("alltoall") as name:
            self._require_one_each(inputs, "alltoall")
            self._require_one_each(outputs, "alltoall")
            flat, splits = self._blocks.joined(
                [movable(as_dense(one, "all_to_all")) for one in inputs], "all_to_all"
            )
        about = f"all_to_all of {inputs[0].dtype}"
        operation = self._start("alltoall", flat, name, opts, about, splits=splits)
        return self._work(opts, [operation], list(outputs), self._spread(outputs))

    @routed
    def all_to_all_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        """Sends the r-th part of a tensor's first dimension to rank r.

        Args:
          output: [rows, ...], which gets the received parts in rank order.
          input: [rows, ...].
          output_splits: The number of rows from each rank; empty means equal parts.
          input_splits: The number of rows for each rank; empty means equal parts.
          opts: Has the timeout.

        Returns:
          The work; its output is `output`.
        """
        with self._call("alltoall") as name:
            host = as_dense(input, "all_to_all_single")
            pieces = [movable(one) for one in self._parts(host, input_splits, "input")]
            if self._blocks.same:
                flat, splits = movable(host), [piece.numel() for piece in pieces]
            else:
                flat, splits = self._blocks.joined(pieces, "all_to_all_single")
            target = output if output.is_contiguous() else torch.empty_like(output).contiguous()
            parts = self._parts(target, output_splits, "output")
        into = place_for(target, flat) if self._blocks.same else None
        about = f"all_to_all of {input.dtype}"
        operation = self._start("alltoall", flat, name, opts, about, splits=splits, into=into)
        spread = self._spread(parts)

        def then(operations: Operations) -> None:
            spread(operations)
            if target is not output:
                copy_back(output, target)

        return self._work(opts, [operation], [output], then)

    alltoall_base = all_to_all_single

    @routed
    def barrier(self, opts: Any = None, *_: Any) -> Any:
        """Starts a barrier, which is complete when every rank has called it."""
        with self._call("barrier") as name:
            pass
        return self._work(opts, [self._start("barrier", None, name, opts)], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Returns when every rank has called it.

        Args:
          timeout: How long to wait, at least 1 ms; None means the group's timeout.
          wait_all_ranks: Whether the error begins with all missing ranks instead of the first one.

        Raises:
          TimeoutError: Not all ranks called it in time; the message names all missing ranks.
        """
        opts = dist.BarrierOptions()
        least = timedelta(milliseconds=1)
        opts.timeout = self._limit if timeout is None else max(timeout, least)
        try:
            self.barrier(opts).wait()
        except TimeoutError as error:
            raise failed_to_pass(error, opts.timeout, wait_all_ranks, self) from None

    # Messages.

    @routed
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Sends a tensor to a rank of the group; complete when that rank receives it."""
        (tensor,) = list_of(tensors)
        return self._messages.send(tensor, dst, tag, self._limit)

    @routed
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receives a tensor of the same dtype and size from a rank of the group."""
        (tensor,) = list_of(tensors)
        return self._messages.receive(tensor, src, tag, self._limit)

    @routed
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives a tensor from any other rank of the group."""
        (tensor,) = list_of(tensors)
        return self._messages.receive(tensor, None, tag, self._limit)

    def _start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(self._owner, works)

    # Helpers.

    def _parts(self, tensor: torch.Tensor, splits: Any, what: str) -> list[torch.Tensor]:
        """Returns a contiguous tensor cut along its first dimension, one part per rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        splits = [int(n) for n in splits or ()]
        if not splits and rows % self.size() == 0:
            splits = [rows // self.size()] * self.size()
        if len(splits) != self.size() or sum(splits) != rows or min(splits) < 0:
            raise InvalidArgumentError(
                f"alltoall: {what}_split_sizes is {splits or None}; it must be {self.size()} "
                f"counts that sum to {rows}, or None if all are equal"
            )
        return list(tensor.split(splits)) if tensor.dim() else [tensor]

    def _spread_list(
        self, flat: torch.Tensor, outputs: Sequence[torch.Tensor]
    ) -> Callable[[Operations], None]:
        """Returns a function that copies the data gathered as a list of `flat` to its places."""

        def then(operations: Operations) -> None:
            sizes = gathered_bytes(operations[0])
            for rank in self._blocks.order:
                _require_bytes(rank, sizes[self._places[rank]], outputs[rank], outputs)
            total = sum(sizes) // flat.element_size()
            data, at = result_of(operations[0], flat, total).view(torch.uint8), 0
            for rank in self._blocks.order:
                bytes_ = sizes[self._places[rank]]
                copy_back(outputs[rank], data[at : at + bytes_].view(outputs[rank].dtype))
                at += bytes_

        return then

    def _spread(self, outputs: Sequence[torch.Tensor]) -> Callable[[Operations], None]:
        """Returns a function that copies the data received from each rank to its place."""

        def then(operations: Operations) -> None:
            placed, at = operations[0].placed, 0
            total = _bytes_of(outputs)
            data = None if placed else typed(operations[0].result(), torch.uint8)
            size = total if data is None else data.numel()
            width = size // max(sum(operations[0].counts), 1)
            for rank in self._blocks.order:  # the order of the data
                bytes_ = int(operations[0].counts[self._places[rank]]) * width
                output = outputs[rank]
                _require_bytes(rank, bytes_, output, outputs)
                if data is not None:
                    copy_back(output, data[at : at + bytes_].view(output.dtype))
                at += bytes_

        return then


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    return sum(one.element_size() * one.numel() for one in tensors)


def _require_bytes(
    rank: int, sent: int, output: torch.Tensor, outputs: Sequence[torch.Tensor]
) -> None:
    if sent != _bytes_of([output]):
        raise MismatchError(
            f"rank {rank} sent {sent} bytes, but the tensor for them has {output.numel()} "
            f"elements of {output.dtype} (of {_bytes_of(outputs)} bytes in all)"
        )


def _require_same(name: str, counts: Sequence[int]) -> None:
    if len(set(counts)) > 1:
        raise MismatchError(
            f"{name}: ranks gave {list(counts)} elements; all_gather_into_tensor needs the same "
            "number from each"
        )


def _take(tensor: torch.Tensor, host: torch.Tensor, _: Operations) -> None:
    copy_back(tensor, host)


def _sized(found: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    if found.numel() == output.numel():
        return found
    raise MismatchError(
        f"scatter: the root sent {found.numel()} elements, but the tensor for them has "
        f"{output.numel()}"
    )
