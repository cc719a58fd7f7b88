"""Starts collectives on tensors; each function returns the call, under way."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import herring
from herring.arrays.collectives import checked_splits
from herring.arrays.digests import digest
from herring.errors import InvalidArgumentError
from herring.horovod.common.adasum import adasum, require_power_of_two
from herring.horovod.common.handles import Call
from herring.horovod.common.operators import (
    LIST_OPERATIONS,
    Adasum,
    Average,
    Sum,
    operator_of,
    scattering_operator,
)
from herring.horovod.common.process_sets import ProcessSet, root_in
from herring.torch.tensors import dtype_name, on_host

__all__ = [
    "start_allgather",
    "start_allreduce",
    "start_alltoall",
    "start_broadcast",
    "start_grouped_allgather",
    "start_grouped_allreduce",
    "start_grouped_reducescatter",
    "start_reducescatter",
    "start_sparse_allreduce",
]


def _dense(tensor: Any, kind: str) -> torch.Tensor:
    """The tensor without its graph.

    Raises:
      InvalidArgumentError: not a tensor, sparse, or complex.
    """
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgumentError(f"{kind}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise InvalidArgumentError(
            f"{kind}: the tensor is sparse ({tensor.layout}); use sparse_allreduce_async, or "
            "tensor.to_dense()"
        )
    if tensor.is_complex():
        raise InvalidArgumentError(
            f"{kind}: {tensor.dtype} is not supported; use torch.view_as_real(tensor)"
        )
    return tensor.detach()


def _listed(tensors: Any, kind: str) -> list[torch.Tensor]:
    if isinstance(tensors, torch.Tensor) or not isinstance(tensors, (list, tuple)):
        raise InvalidArgumentError(f"{kind} takes a list of tensors, got {type(tensors).__name__}")
    return [_dense(tensor, kind) for tensor in tensors]


def _sent(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """A host tensor with the values, contiguous; the tensor itself where it is that already."""
    return on_host(tensor.contiguous(), kind)


def _text(tensor: torch.Tensor) -> str:
    return f"{dtype_name(tensor.dtype)} {list(tensor.shape)}"


def _received(operation: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(operation.result()).view(dtype).view(shape)


def _wide(tensor: torch.Tensor, op: str, prescale: float, postscale: float) -> bool:
    """Whether it is computed in float64, as it holds integers that are not just combined."""
    return not tensor.is_floating_point() and (
        op == "average" or prescale != 1.0 or postscale != 1.0
    )


def _scaled(host: torch.Tensor, prescale: float) -> torch.Tensor:
    """Integers in float64, multiplied in place; each product becomes an integer, towards zero."""
    return host.mul_(prescale).trunc_() if prescale != 1.0 else host


def _narrow(found: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Towards zero."""
    return found.to(dtype) if dtype == torch.bool else found.trunc().to(torch.int64).to(dtype)


def start_allreduce(
    tensor: torch.Tensor,
    name: str | None,
    op: Any,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Call:
    """Starts an all-reduce; its result is the tensor given, or a new one."""
    with Call("allreduce", name, process_set) as call:
        call.will_start("allgather" if op == Adasum else "allreduce")
        operation = operator_of(op, "allreduce")
        dense = _dense(tensor, "allreduce")
        if operation == "adasum":
            _start_adasum(call, [tensor], [dense], prescale, postscale, in_place=in_place)
            only = call.finish
            call.finish = lambda: only()[0]
            return call
        text = _text(dense)
        wide = _wide(dense, operation, prescale, postscale)
        call.about = (text,) if wide else ()
        if wide:
            host = dense.to("cpu", torch.float64, memory_format=torch.contiguous_format, copy=True)
            host, prescale = _scaled(host, prescale), 1.0
        elif in_place:
            host = _sent(dense, "allreduce")
        else:
            host = _sent(dense, "allreduce")
            if host.data_ptr() == dense.data_ptr() or not host.numel():
                host = host.clone()
        call.start(
            host,
            op=operation,
            prescale=prescale,
            postscale=postscale,
            list=digest(text) if wide else 0,
        )
        target = tensor if in_place else None

        def finish() -> torch.Tensor:
            found = _narrow(host, dense.dtype) if wide else host
            if target is None:
                return found.to(dense.device)
            if found.data_ptr() != dense.data_ptr():
                dense.copy_(found)
            return target

        call.finish = finish
    return call


def _start_adasum(
    call: Call,
    tensors: Sequence[torch.Tensor],
    dense: Sequence[torch.Tensor],
    prescale: float,
    postscale: float,
    *,
    in_place: bool,
) -> None:
    require_power_of_two(call.scope.size)
    call.about = [_text(one) for one in dense]
    flats = []
    for one in dense:
        if not one.is_floating_point():
            raise InvalidArgumentError(f"Adasum is for floats, not {dtype_name(one.dtype)}")
        flat = _sent(one, "allreduce").view(-1)
        flats.append((flat * prescale if prescale != 1.0 else flat).view(torch.uint8))
    whole = torch.cat(flats) if flats else torch.empty(0, dtype=torch.uint8)
    operation = call.start(whole.view(1, -1), list=digest("; ".join(call.about)))

    def finish() -> list[torch.Tensor]:
        everyone = _received(operation, torch.uint8, (call.scope.size, len(whole)))
        results, at = [], 0
        for tensor, one, flat in zip(tensors, dense, flats):
            rows = [row[at : at + len(flat)].clone().view(one.dtype) for row in everyone]
            at += len(flat)
            wide = torch.float32 if one.dtype in (torch.float16, torch.bfloat16) else one.dtype
            found = torch.from_numpy(adasum([row.to(wide).numpy() for row in rows])).to(one.dtype)
            if postscale != 1.0:
                found *= postscale
            found = found.view(one.shape)
            if in_place:
                one.copy_(found)
            results.append(tensor if in_place else found.to(one.device))
        return results

    call.finish = finish


def start_grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: Any,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Call:
    """Starts an all-reduce of a list: all of it or none; its result is a list."""
    kind = "grouped_allreduce"
    with Call(kind, name, process_set) as call:
        adds = op == Adasum
        call.will_start(*(("allgather", 1) if adds else ("allreduce", LIST_OPERATIONS)))
        operation = operator_of(op, kind)
        dense = _listed(tensors, kind)
        if adds:
            _start_adasum(call, tensors, dense, prescale, postscale, in_place=in_place)
            return call
        wide = [_wide(one, operation, prescale, postscale) for one in dense]
        hosts = []
        for one, widens in zip(dense, wide):
            if widens:
                host = _scaled(one.to("cpu", torch.float64, copy=True).contiguous(), prescale)
            elif any(wide) and prescale != 1.0:
                host = _sent(one, kind) * prescale
            else:
                host = _sent(one, kind)
                if not in_place and host.data_ptr() == one.data_ptr():
                    host = host.clone()
            hosts.append(host)
        left = 1.0 if any(wide) else prescale
        call.leave_to(
            lambda: herring.grouped_allreduce_async(
                hosts,
                operation,
                name=call.name,
                prescale=left,
                postscale=postscale,
                group=call.group,
            )
        )

        def finish() -> list[torch.Tensor]:
            results = []
            for tensor, one, host, widens in zip(tensors, dense, hosts, wide):
                found = _narrow(host, one.dtype) if widens else host
                if in_place and found.data_ptr() != one.data_ptr():
                    one.copy_(found)
                results.append(tensor if in_place else found.to(one.device))
            return results

        call.finish = finish
    return call


def _rows(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """As what is sent row by row; a scalar is one row."""
    host = _sent(tensor, kind)
    return host.view(1) if host.dim() == 0 else host


def _words(rows: torch.Tensor) -> torch.Tensor:
    """With a dtype that operations know which only move data."""
    return rows.view(torch.int16) if rows.dtype == torch.bfloat16 else rows


def start_allgather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> Call:
    """Starts an all-gather; its result is a new tensor."""
    with Call("allgather", name, process_set) as call:
        call.will_start("allgather")
        dense = _dense(tensor, "allgather")
        rows = _rows(dense, "allgather")
        text = f"{dtype_name(rows.dtype)} {['n', *rows.shape[1:]]}"
        call.about = (text,)
        operation = call.start(_words(rows), list=digest(text))

        def finish() -> torch.Tensor:
            shape = (sum(operation.counts), *rows.shape[1:])
            return _received(operation, rows.dtype, shape).to(dense.device)

        call.finish = finish
    return call


def start_grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> Call:
    """Starts an all-gather of a list: all of it or none; its result is a list."""
    kind = "grouped_allgather"
    with Call(kind, name, process_set) as call:
        call.will_start("allgather")
        dense = _listed(tensors, kind)
        rows = [_rows(one, kind) for one in dense]

        def run() -> list[torch.Tensor]:
            found = herring.grouped_allgather(rows, name=call.name, group=call.group)
            return [_typed(part, one) for part, one in zip(found, dense)]

        call.in_thread(run)
    return call


def start_sparse_allreduce(
    tensor: torch.Tensor, name: str | None, op: Any, process_set: ProcessSet
) -> Call:
    """Starts an all-reduce of a sparse tensor: every rank hands its entries to all."""
    kind = "sparse_allreduce"
    with Call(kind, name, process_set) as call:
        call.will_start("allgather", 2)
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.sparse_coo:
            found = getattr(tensor, "layout", type(tensor).__name__)
            raise InvalidArgumentError(f"{kind}: expected a sparse COO tensor, got {found}")
        if op not in (Average, Sum):
            raise InvalidArgumentError(f"{kind}: op is {op!r}; it must be hvd.Average or hvd.Sum")
        if op == Average and not tensor.is_floating_point():
            raise InvalidArgumentError(f"{kind}: Average is for floats, not {tensor.dtype}")
        whole = tensor.detach().coalesce()
        indices = _sent(whole.indices().t(), kind)
        values = _sent(whole.values(), kind)
        text = f"sparse {_text(whole)}"
        call.about = (text,)
        operations = [
            call.start(_words(part), list=digest(text + which))
            for part, which in ((indices, " indices"), (values, " values"))
        ]

        def finish() -> torch.Tensor:
            count = sum(operations[0].counts)
            places = _received(operations[0], torch.int64, (count, indices.shape[1]))
            every = _received(operations[1], values.dtype, (count, *values.shape[1:]))
            # Entries of one place are added in rank order: the same bits everywhere.
            total = torch.sparse_coo_tensor(
                places.t(), every, whole.shape, check_invariants=False
            ).coalesce()
            if op == Average:
                total.values().div_(call.scope.size)
            return total.to(tensor.device)

        call.finish = finish
    return call


def start_broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Call:
    """Starts a broadcast; its result is the tensor given, or a new one."""
    with Call("broadcast", name, process_set) as call:
        call.will_start("broadcast")
        dense = _dense(tensor, "broadcast")
        root = root_in(process_set, operator.index(root_rank))
        host = _sent(dense, "broadcast")
        if not in_place and host.data_ptr() == dense.data_ptr():
            host = host.clone()
        call.start(host, root=root)

        def finish() -> torch.Tensor:
            if not in_place:
                return host.to(dense.device)
            if host.data_ptr() != dense.data_ptr():
                dense.copy_(host)
            return tensor

        call.finish = finish
    return call


def start_alltoall(
    tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
) -> Call:
    """Starts an all-to-all; its result is a new tensor, and rows from each rank (int32)."""
    with Call("alltoall", name, process_set) as call:
        call.will_start("alltoall")
        dense = _dense(tensor, "alltoall")
        rows = _rows(dense, "alltoall")
        given = splits.tolist() if isinstance(splits, torch.Tensor) else splits
        counts = checked_splits("alltoall", len(rows), given, call.group)
        tail = rows.shape[1:]
        text = f"{dtype_name(rows.dtype)} {['n', *tail]}"
        call.about = (text,)
        empty = 0 in tail  # rows without elements: their numbers go alone
        sent = torch.tensor(counts) if empty else _words(rows)
        parts = [1] * call.scope.size if empty else counts
        operation = call.start(sent, splits=parts, list=digest(text))

        def finish() -> tuple[torch.Tensor, torch.Tensor]:
            if empty:
                came = torch.from_numpy(operation.result()).view(torch.int64).to(torch.int32)
                found = rows.new_empty((int(came.sum()), *tail))
            else:
                items = max(tail.numel(), 1)
                came = torch.tensor([n // items for n in operation.counts], dtype=torch.int32)
                found = _received(operation, rows.dtype, (int(came.sum()), *tail))
            return found.to(dense.device), came

        call.finish = finish
    return call


def _reducible(
    tensor: torch.Tensor, op: str, prescale: float, postscale: float, kind: str
) -> torch.Tensor:
    if tensor.dim() == 0:
        raise InvalidArgumentError(f"{kind} needs tensors with at least one dimension")
    sent = _sent(tensor, kind)
    return sent.double() if _wide(tensor, op, prescale, postscale) else sent


def start_reducescatter(
    tensor: torch.Tensor,
    name: str | None,
    op: Any,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Call:
    """Starts a reduce-scatter; its result is a new tensor."""
    kind = "reducescatter"
    with Call(kind, name, process_set) as call:
        call.will_start("reduce_scatter")
        scales = {"prescale": prescale, "postscale": postscale}
        by = scattering_operator(op, kind)
        dense = _dense(tensor, kind)
        host = _reducible(dense, by, prescale, postscale, kind)
        if host.dtype != dense.dtype:
            host, scales["prescale"] = _scaled(host, prescale), 1.0
        text = _text(dense)
        call.about = (text,)
        operation = call.start(host, op=by, list=digest(text), **scales)
        size, rank = call.scope.size, call.scope.rank
        mine = len(dense) // size + (rank < len(dense) % size)

        def finish() -> torch.Tensor:
            found = _received(operation, host.dtype, (mine, *dense.shape[1:]))
            if host.dtype != dense.dtype:
                found = _narrow(found, dense.dtype)
            return found.to(dense.device)

        call.finish = finish
    return call


def start_grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: Any,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Call:
    """Starts a reduce-scatter of a list: all of it or none; its result is a list."""
    kind = "grouped_reducescatter"
    with Call(kind, name, process_set) as call:
        call.will_start("reduce_scatter", LIST_OPERATIONS)
        by = scattering_operator(op, kind)
        dense = _listed(tensors, kind)
        hosts = [_reducible(one, by, prescale, postscale, kind) for one in dense]
        wide = [host.dtype != one.dtype for host, one in zip(hosts, dense)]
        left = prescale
        if any(wide):
            hosts = [
                _scaled(host, prescale) if widens else host * prescale
                for host, widens in zip(hosts, wide)
            ]
            left = 1.0

        def run() -> list[torch.Tensor]:
            found = herring.grouped_reduce_scatter(
                hosts,
                by,
                name=call.name,
                prescale=left,
                postscale=postscale,
                group=call.group,
            )
            results = []
            for part, host, one in zip(found, hosts, dense):
                mine = _typed(part, host)
                mine = mine if host.dtype == one.dtype else _narrow(mine, one.dtype)
                results.append(mine.to(one.device))
            return results

        call.in_thread(run)
    return call


def _typed(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    """What NumPy has as bits of bfloat16 is bfloat16 again."""
    found = (
        torch.from_numpy(np.ascontiguousarray(array).view(np.int16))
        if (like.dtype == torch.bfloat16)
        else torch.from_numpy(array)
    )
    return found.view(like.dtype).to(like.device)
