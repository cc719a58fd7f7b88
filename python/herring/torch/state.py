"""Gives all ranks the parameters, and the optimizer state, of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from herring.arrays.agreement import require_agreement
from herring.arrays.arguments import name_given, shown
from herring.arrays.calls import CallOptions, called
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import broadcast_plain, may_pickle
from herring.arrays.operations import Handle, submit
from herring.base import pickling
from herring.errors import InvalidArgumentError
from herring.torch.tensors import FlatBytes, describe, dtype_name, require_writable


class _TensorPlace:
    """Replaces a tensor in an optimizer's state while the state's structure is sent."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...], on_host: bool) -> None:
        self.dtype = dtype
        self.shape = shape
        self.on_host = on_host


class _Whole:
    """Holds a tensor that is sent as an object, because it consists of other tensors."""

    def __init__(self, tensor: torch.Tensor, on_host: bool) -> None:
        self.tensor = tensor
        self.on_host = on_host


def _describe_part(part: Any) -> tuple[str, Any]:
    """Describes a part of an optimizer's state that is not plain data."""
    if isinstance(part, _TensorPlace):
        return "tensor", [dtype_name(part.dtype), part.shape, part.on_host]
    kind = type(part.tensor if isinstance(part, _Whole) else part)
    if not may_pickle():
        raise InvalidArgumentError(
            f"broadcast_optimizer_state: the optimizer's state has a {kind.__module__}."
            f"{kind.__qualname__}, which would be pickled; HERRING_OBJECTS allows tensors, "
            "None, bool, int, float, complex, str, bytes, and list, tuple and dict of these"
        )
    if isinstance(part, _Whole):
        return "whole", [pickling.dumps(part.tensor), part.on_host]
    return "object", pickling.dumps(part)


def _restore_part(word: str, data: Any) -> Any:
    if word == "tensor":
        dtype, shape, on_host = data
        return _TensorPlace(getattr(torch, dtype), shape, on_host)
    if word == "object" and may_pickle():
        return pickling.loads(data)
    if word == "whole" and may_pickle():
        return _Whole(pickling.loads(data[0]), data[1])
    raise ValueError(f"{word!r} is not allowed")


def broadcast_tensors(
    tensors: Sequence[torch.Tensor],
    root: int,
    *,
    name: str,
    flat: FlatBytes | None = None,
    group: Group | None = None,
    agreement: str = "",
) -> None:
    """Overwrites tensors with those of rank `root`, with few operations (collective).

    Args:
      tensors: Tensors with equal dtypes, shapes and order on all ranks; any strides and devices.
      flat: A packing that was made for these tensors earlier, which saves allocating one.
      agreement: What all ranks must give alike besides numbers of bytes, in words.
    """
    scope = scope_of(group)
    if not tensors or scope.size == 1:
        return
    is_root = scope.rank == root
    with called("broadcast", f"{name}.0", group):  # there may be no memory for it
        flat = flat or FlatBytes(tensors)
        if is_root:
            flat.pack(tensors)
    for index, block in enumerate(flat.blocks):
        call = CallOptions(f"{name}.{index}", group=group)
        Handle(submit("broadcast", block, call, root=root, agreement=agreement), block).wait()
    if not is_root:
        flat.unpack(tensors)


def broadcast_parameters(
    parameters: Mapping[str, Any] | Iterable[tuple[str, torch.Tensor]],
    root: int = 0,
    *,
    name: str = "parameters",
    group: Group | None = None,
) -> None:
    """Overwrites parameters (and buffers) with those of rank `root`, in place (collective).

    Args:
      parameters: `model.state_dict()` or `model.named_parameters()`. Entries of a state_dict that
        are not tensors are left alone.
      name: The prefix of the operations' names. Calls on different threads need different names.

    Raises:
      InvalidArgumentError: `parameters` is something else, or a tensor cannot be overwritten (it is
        expanded, sparse, on the device "meta", or not initialized).
      MismatchError: Names, shapes or dtypes differ between ranks.
    """
    name = name_given(name) or "parameters"
    named = _named_tensors(parameters)
    require_agreement(
        (describe(key, tensor, values=True) for key, tensor in named),
        what="tensor",
        name=name,
        group=group,
    )
    require_writable(named, "broadcast_parameters")
    broadcast_tensors([tensor.detach() for _, tensor in named], root, name=name, group=group)


def _named_tensors(parameters: Any) -> list[tuple[str, torch.Tensor]]:
    if isinstance(parameters, torch.nn.Module):
        raise InvalidArgumentError(
            f"broadcast_parameters: parameters is a module ({type(parameters).__name__}); pass its "
            "state_dict(), which has buffers too, or its named_parameters()"
        )
    items = parameters.items() if isinstance(parameters, Mapping) else parameters
    try:
        return [(str(key), value) for key, value in items if isinstance(value, torch.Tensor)]
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgumentError(
            f"broadcast_parameters: parameters is {shown(parameters)}; it must be "
            "model.state_dict() or model.named_parameters()"
        ) from None


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root: int = 0,
    *,
    name: str = "optimizer_state",
    group: Group | None = None,
) -> None:
    """Gives all ranks the optimizer state and options of rank `root` (collective).

    It works for every torch optimizer, even if only `root` has any state yet, for instance because
    only `root` has read a checkpoint. The state of other ranks is replaced. State tensors keep the
    dtypes that they have on `root`. Tensors that are not on a CPU there go to the device of their
    parameter. The dictionaries of parameter groups are kept, so a learning-rate schedule that holds
    them goes on. Values that are neither tensors nor plain Python data are pickled, unless
    ``HERRING_OBJECTS`` forbids it. So are tensors that consist of others, as in 8-bit optimizers.

    Args:
      optimizer: A torch optimizer or a `DistributedOptimizer`, over the same parameters on every
        rank.
      root: The rank whose state all ranks get; with `group`, a rank inside it.
      name: The prefix of the operations' names.

    Raises:
      InvalidArgumentError: `optimizer` is not an optimizer, or its state has a value that
        ``HERRING_OBJECTS`` does not let through.
      MismatchError: The optimizers differ in type, groups or parameters.
    """
    inner = getattr(optimizer, "inner", optimizer)
    if not isinstance(inner, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"broadcast_optimizer_state: optimizer is {shown(optimizer)}; it must be a torch "
            "optimizer"
        )
    name = name_given(name) or "optimizer_state"
    require_agreement(
        [
            f"type {type(inner).__name__}",
            *(
                describe(f"group {g} parameter {i}", parameter, values=True)
                for g, group in enumerate(inner.param_groups)
                for i, parameter in enumerate(group["params"])
            ),
        ],
        what="entry",
        name=name,
        group=group,
    )
    scope = scope_of(group)
    if scope.size == 1:
        return
    tensors: list[torch.Tensor] = []
    is_root = scope.rank == root
    structure = None
    if is_root:
        whole = inner.state_dict()
        structure = [_lift(whole[part], tensors) for part in ("state", "param_groups")]
    structure = broadcast_plain(
        structure,
        root,
        name=f"{name}.structure",
        group=group,
        lift=_describe_part,
        lower=_restore_part,
    )
    if is_root:
        broadcast_tensors(tensors, root, name=name, group=group)
        return
    parameters = [p for entries in inner.param_groups for p in entries["params"]]
    with called("broadcast", f"{name}.0", group):  # there may be no memory for it
        state = {
            parameters[key] if isinstance(key, int) else key: _lower(
                value, tensors, parameters[key].device if isinstance(key, int) else "cpu"
            )
            for key, value in structure[0].items()
        }
        options = _lower(structure[1], tensors, "cpu")
    broadcast_tensors(tensors, root, name=name, group=group)
    inner.state.clear()
    inner.state.update(state)
    for entries, new in zip(inner.param_groups, options):
        kept = entries["params"]
        entries.clear()
        entries.update(new, params=kept)


def _lift(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Replaces tensors in nested containers by places, and collects the tensors in order."""
    if hasattr(value, "__tensor_flatten__"):  # such as the quantized states of 8-bit optimizers
        on_host = value.device.type == "cpu"
        return _Whole(value.detach() if on_host else value.detach().cpu(), on_host)
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        tensors.append(dense.resolve_conj().resolve_neg())
        return _TensorPlace(dense.dtype, tuple(dense.shape), dense.device.type == "cpu")
    if isinstance(value, dict):
        return {key: _lift(item, tensors) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_lift(item, tensors) for item in value])
    return value


def _lower(value: Any, tensors: list[torch.Tensor], device: Any) -> Any:
    """Does the inverse of `_lift`: puts an empty tensor in each place and collects it in order."""
    if isinstance(value, _Whole):
        return value.tensor if value.on_host else value.tensor.to(device)
    if isinstance(value, _TensorPlace):
        device = "cpu" if value.on_host else device
        tensors.append(torch.empty(value.shape, dtype=value.dtype, device=device))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _lower(item, tensors, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_lower(item, tensors, device) for item in value])
    return value
