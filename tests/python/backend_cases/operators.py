"""Calls every operator that torch registers for collectives, and checks every group method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # registers operators
from torch._C import _distributed_c10d as c10d

from herring.torch.backend import HerringProcessGroup
from herring.torch.backend.face import FORWARDED, has_face

from .support import case, raises, same


def _own(count: int = 2) -> torch.Tensor:
    """Returns a tensor of `count` elements with the value rank + 1."""
    return torch.full((count,), dist.get_rank() + 1.0)


def _every(count: int = 2) -> torch.Tensor:
    return torch.arange(1.0, dist.get_world_size() + 1).repeat_interleave(count)


def _total(count: int = 2) -> torch.Tensor:
    size = dist.get_world_size()
    return torch.full((count,), size * (size + 1) / 2)


def _neighbours() -> tuple[int, int]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % size, (rank - 1) % size


def _from(source: int) -> torch.Tensor:
    return torch.full((2,), source + 1.0)


def _zeros() -> torch.Tensor:
    return torch.zeros(2)


def _wait(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_wait(one) for one in value]
    return torch.ops._c10d_functional.wait_tensor(value)


def _whole(count: int = 2) -> torch.Tensor:
    """Returns the input of a reduce-scatter: `count` elements for each rank."""
    return _own(count * dist.get_world_size())


def _functional() -> dict[str, Callable[[], None]]:
    ops, size = torch.ops._c10d_functional, dist.get_world_size()
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    to, source = _neighbours()

    def out(op: Any, given: torch.Tensor, wanted: torch.Tensor, *options: Any) -> None:
        target = torch.zeros_like(wanted)
        _wait(op(given, *options, size, name, out=target))
        same(target, wanted)

    def received() -> None:
        target = _zeros()
        sent = ops.isend(_own(), to, 0, name)
        same(_wait(ops.irecv(target, source, 0, name)), _from(source))
        _wait(sent)

    def batch() -> None:
        target = _zeros()
        found = ops.batch_p2p_ops(["isend", "irecv"], [to, source], [0, 0], [_own(), target], name)
        _wait(found)
        same(target, _from(source))

    exchanged = torch.arange(1.0, size + 1)
    return {
        "all_reduce": lambda: same(_wait(ops.all_reduce(_own(), "sum", name)), _total()),
        "all_reduce_": lambda: same(_wait(ops.all_reduce_(_own(), "sum", name)), _total()),
        "all_reduce_coalesced": lambda: same(
            _wait(ops.all_reduce_coalesced([_own(), _own()], "sum", name))[1], _total()
        ),
        "all_reduce_coalesced_": lambda: same(
            _wait(ops.all_reduce_coalesced_([_own(), _own()], "sum", name))[1], _total()
        ),
        "all_gather_into_tensor": lambda: same(
            _wait(ops.all_gather_into_tensor(_own(), size, name)), _every()
        ),
        "all_gather_into_tensor_coalesced": lambda: same(
            _wait(ops.all_gather_into_tensor_coalesced([_own(), _own()], size, name))[1], _every()
        ),
        "all_gather_into_tensor_out": lambda: out(ops.all_gather_into_tensor_out, _own(), _every()),
        "reduce_scatter_tensor": lambda: same(
            _wait(ops.reduce_scatter_tensor(_whole(), "sum", size, name)), _total()
        ),
        "reduce_scatter_tensor_coalesced": lambda: same(
            _wait(ops.reduce_scatter_tensor_coalesced([_whole()], "sum", size, name))[0], _total()
        ),
        "reduce_scatter_tensor_out": lambda: out(
            ops.reduce_scatter_tensor_out, _whole(), _total(), "sum"
        ),
        "all_to_all_single": lambda: same(
            _wait(ops.all_to_all_single(_own(size), [1] * size, [1] * size, name)), exchanged
        ),
        "broadcast": lambda: same(_wait(ops.broadcast(_own(), 1, name)), _from(1)),
        "broadcast_": lambda: same(_wait(ops.broadcast_(_own(), 1, name)), _from(1)),
        "isend": received,
        "irecv": received,
        "batch_p2p_ops": batch,
        "wait_tensor": lambda: same(_wait(_own()), _own()),
        "wait_tensors": lambda: same(ops.wait_tensors([_own()])[0], _own()),
        "_wrap_tensor_autograd": lambda: same(_wait(ops._wrap_tensor_autograd(_own())), _own()),
    }


def _with_gradients() -> dict[str, Callable[[], None]]:
    ops, size = torch.ops._c10d_functional_autograd, dist.get_world_size()
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def check(op: Any, given: torch.Tensor, wanted: torch.Tensor, *options: Any) -> None:
        given.requires_grad_()
        found = op(given, *options, name)
        found.sum().backward()
        same(_wait(found.detach()), wanted)
        assert given.grad is not None and given.grad.shape == given.shape

    return {
        "all_gather_into_tensor": lambda: check(ops.all_gather_into_tensor, _own(), _every(), size),
        "reduce_scatter_tensor": lambda: check(
            ops.reduce_scatter_tensor, _whole(), _total(), "sum", size
        ),
        "all_to_all_single": lambda: check(
            ops.all_to_all_single, _own(size), _every(1), [1] * size, [1] * size
        ),
    }


def _below() -> dict[str, Callable[[], None]]:
    """Returns calls of ``torch.ops.c10d`` by name, which C++ uses but Python hardly ever does."""
    ops, rank, size = torch.ops.c10d, dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD.boxed()  # type: ignore[union-attr]
    total = torch.classes.c10d.ReduceOp()  # the sum
    to, source = _neighbours()

    def wait(found: Any) -> None:
        work = found[-1] if isinstance(found, (list, tuple)) else found
        c10d.Work.unbox(work).wait()

    def into(target: torch.Tensor, wanted: torch.Tensor, found: Any) -> None:
        wait(found)
        same(target, wanted)

    def many() -> list[torch.Tensor]:
        return [_zeros() for _ in range(size)]

    def gathered(targets: list[torch.Tensor], found: Any, here: bool = True) -> None:
        wait(found)
        if here:
            same(torch.cat(targets), _every())

    def allreduce() -> None:
        own = _own()
        into(own, _total(), ops.allreduce_([own], group, total, None))

    def allreduce_coalesced() -> None:
        own = _own()
        into(own, _total(), ops.allreduce_coalesced_([own], group, total))

    def reduce() -> None:
        own = _own()
        wait(ops.reduce_([own], group, total, 0, 0))
        if rank == 0:
            same(own, _total())

    def broadcast() -> None:
        own = _own()
        into(own, _from(1), ops.broadcast_([own], group, 1, 0))

    def allgather() -> None:
        targets = many()
        gathered(targets, ops.allgather_([targets], [_own()], group))

    def allgather_base() -> None:
        target = torch.zeros(2 * size)
        into(target, _every(), ops._allgather_base_(target, _own(), group))

    def allgather_coalesced() -> None:
        targets = many()
        gathered(targets, ops.allgather_coalesced_([[one] for one in targets], [_own()], group))

    def allgather_tensors() -> None:
        target = torch.zeros(2 * size)
        found = ops.allgather_into_tensor_coalesced_([target], [_own()], group)
        into(target, _every(), found)

    def gather() -> None:
        targets = many()
        given = [targets] if rank == 0 else []
        gathered(targets, ops.gather_(given, [_own()], group, 0), rank == 0)

    def scatter() -> None:
        target = _zeros()
        given = [[_from(r) for r in range(size)]] if rank == 0 else []
        into(target, _own(), ops.scatter_([target], given, group, 0))

    def reduce_scatter() -> None:
        target = _zeros()
        given = [[_own() for _ in range(size)]]
        into(target, _total(), ops.reduce_scatter_([target], given, group, total))

    def reduce_scatter_base() -> None:
        target = _zeros()
        into(target, _total(), ops._reduce_scatter_base_(target, _whole(), group, total))

    def reduce_scatter_tensors() -> None:
        target = _zeros()
        found = ops.reduce_scatter_tensor_coalesced_([target], [_whole()], group, total)
        into(target, _total(), found)

    def alltoall() -> None:
        targets = many()
        gathered(targets, ops.alltoall_(targets, [_own() for _ in range(size)], group))

    def alltoall_base() -> None:
        target = torch.zeros(2 * size)
        into(target, _every(), ops.alltoall_base_(target, _whole(), group, [], []))

    def messages(any_source: bool) -> None:
        target = _zeros()
        sent = ops.send([_own()], group, to, 0)
        if any_source:
            found = ops.recv_any_source_([target], group, 0)
        else:
            found = ops.recv_([target], group, source, 0)
        into(target, _from(source), found)
        wait(sent)
        dist.barrier()

    def refused(text: str, op: Any, *arguments: Any) -> Callable[[], None]:
        return lambda: raises(RuntimeError, text, op, *arguments)

    return {
        "allreduce_": allreduce,
        "allreduce_coalesced_": allreduce_coalesced,
        "reduce_": reduce,
        "broadcast_": broadcast,
        "allgather_": allgather,
        "_allgather_base_": allgather_base,
        "allgather_coalesced_": allgather_coalesced,
        "allgather_into_tensor_coalesced_": allgather_tensors,
        "gather_": gather,
        "gather_into_tensor_": refused(  # dist.gather_single() does not use C++
            "herring does not support gather_single",
            *(getattr(ops, "gather_into_tensor_", None), _zeros(), _own(), group, 0),
        ),
        "scatter_": scatter,
        "reduce_scatter_": reduce_scatter,
        "_reduce_scatter_base_": reduce_scatter_base,
        "reduce_scatter_tensor_coalesced_": reduce_scatter_tensors,
        "alltoall_": alltoall,
        "alltoall_base_": alltoall_base,
        "barrier": lambda: wait(ops.barrier(torch.zeros(1), group, [])),
        "send": lambda: messages(False),
        "recv_": lambda: messages(False),
        "recv_any_source_": lambda: messages(True),
        "monitored_barrier_": refused(
            "herring", ops.monitored_barrier_, torch.zeros(1), group, [], 1000, False
        ),
        "check_for_nan": lambda: ops.check_for_nan(_own()),
    }


def _registered(space: str) -> set[str]:
    names = torch._C._dispatch_get_all_op_names()
    return {name.partition("::")[2].partition(".")[0] for name in names if name.startswith(space)}


@case
def every_operator() -> None:
    for space, known in (
        ("_c10d_functional::", _functional()),
        ("_c10d_functional_autograd::", _with_gradients()),
        ("c10d::", _below()),
    ):
        names = sorted(_registered(space))
        assert set(names) <= set(known), (space, set(names) - set(known))
        for name in names:
            if space == "c10d::" and not has_face() and name != "check_for_nan":
                continue  # before 2.14, C++ cannot find Python groups
            try:
                known[name]()
            except Exception as error:
                raise AssertionError(f"{space}{name}: {type(error).__name__}: {error}") from error


# Group methods left to torch: they work, or they say what is missing.
_OF_TORCH = frozenset(
    [
        "BackendType",
        "_backend_id",
        "_enable_collectives_timing",
        "_get_backend_name",
        "_has_hooks",
        "_id",
        "_register_backend",
        "_register_on_completion_hook",
        "_set_default_backend",
        "_wait_for_pending_works",
        "bound_device_id",
        "boxed",
        "unbox",
        "get_group_store",
        "merge_remote_group",
        "name",
        "rank",
        "size",
        "split_group",
        "use_pg_for_symm_mem_rendezvous",
        "_add_ephemeral_timeout",
        "get_backend",
        "get_reconfigure_handle",
        "new_window",
        "reconfigure",
        "register_abort_hook",
        "register_post_hook",
        "register_pre_hook",
        "supports_reconfigure",
        "supports_window",
        "unregister_abort_hook",
        "unregister_post_hook",
        "unregister_pre_hook",
    ]
)
# Methods left to torch on the backend object, which is all that C++ sees of a group.
_OF_BACKENDS = frozenset(
    [
        "Options",
        "allocate_tensor",
        "eager_connect_single_device",
        "mem_allocator",
        "memory_stats",
        "merge",
        "options",
        "get_error",
        "resume",
        "suspend",
        "setUsePgForSymmMemRendezvous",
        "shrink",
        "split",
        "supports_coalescing",
        "supports_shrinking",
        "supports_splitting",
        "supports_tensor_alloc",
        "supports_time_estimate",
        "monitored_barrier",
        "_allgather_base",
        "_reduce_scatter_base",
        "alltoall_base",
        "gather_into_tensor",
        "_start_coalescing",
        "_end_coalescing",
        "_set_group_uid",
        "_set_sequence_number_for_group",
        "shutdown",
        "abort",
        "allreduce_sparse",
    ]
)


def _public(of: Any) -> set[str]:
    return {one for one in dir(of) if not one.startswith(("__", "_pybind")) and not one.isupper()}


@case
def every_method() -> None:
    own = {
        name
        for one in HerringProcessGroup.__mro__
        for name in vars(one)
        if one.__module__.startswith("herring.")
    }
    missing = _public(dist.ProcessGroup) - own - _OF_TORCH
    assert not missing, missing
    missing = _public(c10d.Backend) - set(FORWARDED) - _OF_BACKENDS - _OF_TORCH
    assert not missing, missing
    assert set(FORWARDED) <= own, set(FORWARDED) - own
    for name, arguments, text in (
        ("reconfigure", (getattr(c10d, "ReconfigureOptions", int)(),), "cannot change"),
        ("new_window", (), "herring does not support new_window"),
        ("get_reconfigure_handle", (), "cannot change"),
    ):
        if hasattr(dist.ProcessGroup, name):
            raises(RuntimeError, text, getattr(dist.group.WORLD, name), *arguments)
