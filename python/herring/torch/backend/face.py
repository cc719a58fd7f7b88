"""A backend object through which torch's C++ calls a process group that is written in Python.

For some collectives torch's C++ has a bridge to the Python methods of a process group. For others,
such as ``all_gather_single`` and all of ``torch.ops.c10d``, it asks the group for the backend of a
device. From torch 2.14 on a backend can be written in Python. `Face` is such a backend, and passes
each call back to the group.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from herring.errors import HerringError

__all__ = ["FORWARDED", "add_face", "has_face"]

# The methods of a backend that `Face` passes to the group.
FORWARDED: tuple[str, ...] = (
    *("all_gather_single", "all_gather_single_coalesced", "all_to_all_single", "allgather"),
    *("allgather_coalesced", "allreduce", "allreduce_coalesced", "alltoall", "barrier"),
    *("broadcast", "gather", "gather_single", "get_error", "get_reconfigure_handle"),
    *("reconfigure", "recv", "recv_anysource", "reduce", "reduce_scatter"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced", "scatter", "send"),
    *("set_timeout", "_get_sequence_number_for_group"),
)


def _forward(name: str, to: str = "") -> Any:
    def call(self: Any, *arguments: Any) -> Any:
        group = self.group()
        if group is None:
            raise HerringError("the process group has been destroyed")
        return getattr(group, to or name)(*arguments)

    call.__name__ = name
    return call


def _face() -> Any:
    """Returns the class; None if this torch has no backends in Python."""
    members: dict[str, Any] = {name: _forward(name) for name in FORWARDED}
    members["allreduce_sparse"] = _forward("allreduce_sparse", "allreduce")
    for name in ("start_coalescing", "end_coalescing"):
        members[name] = _forward(name, f"_{name}")
    # Hooks that C++ registers with the default backend of the group.
    members["registerAbortHook"] = _forward("registerAbortHook", "register_abort_hook")
    members["unregisterAbortHook"] = _forward("unregisterAbortHook", "unregister_abort_hook")
    members["_register_on_completion_hook"] = _forward("_register_on_completion_hook")
    members["getBackendName"] = lambda _: "herring"
    # C++ would answer a missing property by asking this class again and again.
    for name in dir(c10d.Backend):
        if name.startswith("supports_") and isinstance(getattr(c10d.Backend, name), property):
            members[name] = name == "supports_abort_hooks"
    members["supports_reconfigure"] = property(
        lambda face: getattr(face.group(), "supports_reconfigure", False)
    )
    members["options"] = property(lambda _: c10d.Backend.Options("herring"))
    # The group itself ends its backends, so these calls must do nothing.
    members["shutdown"] = members["abort"] = lambda _: None
    try:
        made: Any = type("Face", (c10d.Backend,), members)
        made(0, 1)
    except TypeError:  # before torch 2.14
        return None
    return made


_Face = _face()


def has_face() -> bool:
    """Returns whether this torch takes backends that are written in Python."""
    return _Face is not None


def add_face(group: dist.ProcessGroup) -> None:
    """Lets C++ reach the group's collectives in every way that this torch has."""
    if _Face is None:
        _add_operators()
        return
    face = _Face(group.rank(), group.size())
    face.group = weakref.ref(group)  # weak, so that a destroyed group is freed at once
    group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    for kind in ("cpu", "cuda"):
        group._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, face)


def _resolved(group: Any) -> Any:
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    return group


def _all_gather_into_tensor_out(
    input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
) -> torch.Tensor:
    """Serves an operator that torch's Inductor emits for FSDP."""
    del group_size
    options = c10d.AllgatherOptions()
    options.asyncOp = True
    work = _resolved(group_name)._allgather_base(out, input.contiguous(), options)
    c10d._register_work(out, work)
    return out


def _batch_p2p_ops(
    op_list: list[str],
    peer_list: list[int],
    tag_list: list[int],
    tensors: list[torch.Tensor],
    group_name: Any,
) -> list[torch.Tensor]:
    group = _resolved(group_name)
    for kind, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors):
        start = group.send if kind == "isend" else group.recv
        c10d._register_work(tensor, start([tensor], peer, tag))
    return tensors


_library: list[torch.library.Library] = []


def _add_operators() -> None:
    """Adds the functional collectives that torch before 2.14 starts without the bridge.

    torch's own versions ask the group for a backend. These versions serve every group.
    """
    if _library:
        return
    _library.append(torch.library.Library("_c10d_functional", "IMPL"))
    for function in (_all_gather_into_tensor_out, _batch_p2p_ops):
        name = function.__name__[1:]
        if hasattr(torch.ops._c10d_functional, name):
            for kind in ("CPU", "CUDA"):
                _library[0].impl(name, function, kind)
