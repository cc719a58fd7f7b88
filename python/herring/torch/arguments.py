"""Checks the arguments of torch's DistributedDataParallel: keeps their meaning or refuses them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

import herring
from herring.arrays.arguments import count_of, number_of, shown
from herring.arrays.groups import Group
from herring.errors import InvalidArgumentError

_REFUSED = {
    "delay_all_reduce_named_params": "every gradient is averaged in the backward pass",
    "param_to_hook_all_reduce": "every gradient is averaged in the backward pass",
    "mixed_precision": "use torch.autocast, and wire_dtype='bfloat16' for the data that is sent",
    "device_mesh": "give the workers to average over as group=herring.new_group(ranks)",
    "bucket_cap_mb_list": "fusion buffers are equal slices; give one size as bucket_cap_mb",
}
# These arguments have no meaning here, and leaving them out changes nothing.
_IGNORED = frozenset(
    [
        "skip_all_reduce_unused_params",  # a parameter that no rank uses keeps .grad None anyway
        "batched_grad_copy",  # copies are always batched
        "lazy_bucket_allocation",  # when torch's buckets, which are not there, have memory
    ]
)


def check_torch_arguments(arguments: dict[str, Any]) -> None:
    """Refuses arguments without an equivalent; TypeError for those that torch lacks, too."""
    for name, value in arguments.items():
        if name in _REFUSED:
            if value is not None:
                raise InvalidArgumentError(
                    f"DistributedDataParallel does not take {name}: {_REFUSED[name]}"
                )
        elif name not in _IGNORED:
            raise TypeError(
                f"DistributedDataParallel.__init__() got an unexpected keyword argument {name!r}"
            )


def check_module(module: Any, ignored: Collection[str] = ()) -> None:
    """Refuses a value that is not a module, and a module without trainable parameters."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(
            f"DistributedDataParallel: module is {shown(module)}; it must be a torch.nn.Module: "
            "the model itself, not its parameters()"
        )
    if not any(p.requires_grad for name, p in module.named_parameters() if name not in ignored):
        raise InvalidArgumentError(
            f"DistributedDataParallel: no parameter of {type(module).__name__} requires a "
            "gradient, so nothing would be averaged; use the module itself, or unfreeze "
            "the parameters to be trained before wrapping it"
        )


def check_process_group(process_group: Any, group: Group | None) -> None:
    """Accepts None, and torch's default group if it has all workers of the job."""
    if process_group is None:
        return
    if group is not None:
        raise InvalidArgumentError("give process_group or group, not both")
    world = getattr(torch.distributed.group, "WORLD", None)
    if process_group is world and process_group.size() == herring.size():
        return
    raise InvalidArgumentError(
        "process_group must be None, or torch's default group if it has all workers of this "
        "job; to average over some of them pass group=herring.new_group(ranks)"
    )


def buffer_bytes_of(bucket_cap_mb: float | None, buffer_bytes: int) -> int:
    """Returns the size of a fusion buffer in bytes, from one of two arguments."""
    buffer_bytes = count_of(buffer_bytes, "buffer_bytes")
    if bucket_cap_mb is None:
        return buffer_bytes
    if buffer_bytes:
        raise InvalidArgumentError("give bucket_cap_mb or buffer_bytes, not both")
    bucket_cap_mb = number_of(bucket_cap_mb, "bucket_cap_mb")
    if not 0 < bucket_cap_mb < 2**40:
        raise InvalidArgumentError(f"bucket_cap_mb is {bucket_cap_mb}; it must be more than 0")
    return max(1, int(bucket_cap_mb * (1 << 20)))


def input_device(
    module: torch.nn.Module,
    device_ids: Sequence[int | str | torch.device] | None,
    output_device: int | str | torch.device | None,
) -> torch.device | None:
    """Returns the device to which inputs are moved, as torch does; None if they are not moved."""
    if device_ids is not None and not isinstance(device_ids, (list, tuple)):
        raise InvalidArgumentError(
            f"device_ids is {shown(device_ids)}; it must be a list with one device, or None"
        )
    if not device_ids:
        if output_device is not None:
            raise InvalidArgumentError(
                f"output_device is {shown(output_device)} without device_ids; the module itself "
                "says where its output is"
            )
        return None
    if len(device_ids) != 1:
        raise InvalidArgumentError(
            f"device_ids is {list(device_ids)!r}: a worker has one device; start more workers"
        )
    devices = {p.device for p in module.parameters()}
    device = _device(device_ids[0])
    if devices != {device}:
        where = ", ".join(sorted(map(str, devices))) or "no device"
        raise InvalidArgumentError(
            f"device_ids is [{device}], and the parameters are on {where}: move the module there "
            "first, or leave device_ids out (on the CPU it must be None)"
        )
    if output_device is not None and _device(output_device) != device:
        raise InvalidArgumentError(
            f"output_device is {output_device!r}; it can only be the device in device_ids, {device}"
        )
    return device


def _device(given: int | str | torch.device) -> torch.device:
    if isinstance(given, int):
        return torch.device("cuda", given)
    try:
        device = torch.device(given)
    except (TypeError, RuntimeError, ValueError):
        raise InvalidArgumentError(
            f"the device is {shown(given)}; torch does not know such a device"
        ) from None
    if device.index is None and device.type == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def moved(value: Any, device: torch.device) -> Any:
    """Returns `value` with all tensors in tuples, lists and dictionaries moved to `device`."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(item, device) for item in value)
    if isinstance(value, dict):
        return type(value)((key, moved(item, device)) for key, item in value.items())
    return value
