"""Decides which tensors on GPUs the core takes directly, without a copy by torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from herring.arrays.devices import described_gpus
from herring.errors import HerringError
from herring.torch.tensors import on_host, warn_once


@functools.cache
def _takes(index: int) -> bool:
    """Returns whether the core copies from and to a GPU; if not, it warns once."""
    try:
        why = str(described_gpus()["devices"][index]["refused"])
    except (HerringError, IndexError) as error:
        why = str(error) or f"the driver sees no GPU {index}"
    if not why:
        return True
    warn_once(
        f"gpu {index}",
        f"herring.torch: tensors of cuda:{index} are copied to host memory and back by torch, "
        f"which waits for each of them ({why})",
    )
    return False


def gpu_of(tensor: torch.Tensor) -> int | None:
    """Returns the number of the tensor's GPU; None if it is on none that the core can use."""
    if tensor.device.type != "cuda" or torch.version.cuda is None:
        return None
    index = torch.cuda.current_device() if tensor.device.index is None else tensor.device.index
    return index if _takes(index) else None


def common_gpu(tensors: Iterable[torch.Tensor]) -> int | None:
    """Returns the GPU on which all tensors are; None if there is no such GPU."""
    found = {gpu_of(tensor) for tensor in tensors}
    return found.pop() if len(found) == 1 else None


def exported(tensor: torch.Tensor) -> Any:
    """Returns a GPU tensor in the form that the core takes."""
    return tensor


def taken(tensor: torch.Tensor, operation: str) -> tuple[Any, torch.Tensor | None]:
    """Returns the object for the core, and the tensor's copy in host memory or None."""
    if gpu_of(tensor) is not None:
        return exported(tensor), None
    host = on_host(tensor, operation)
    return host, None if host is tensor else host


class Moment:
    """A point in time in the current streams of some tensors' GPUs, for which others can wait."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._events: list[tuple[torch.device, torch.cuda.Event]] = []
        for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self._events.append((device, event))

    def wait(self) -> None:
        """Makes work that is queued in the current streams from now on wait for that point."""
        for device, event in self._events:
            torch.cuda.current_stream(device).wait_event(event)


class Streams:
    """Keeps work in the order of `join` calls when a device's current stream changes."""

    def __init__(self) -> None:
        self._last: torch.cuda.Stream | None = None

    def join(self, tensor: torch.Tensor) -> None:
        """Makes the current stream wait for the stream that was current at the last call."""
        if tensor.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(tensor.device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
