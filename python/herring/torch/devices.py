"""Tensors on GPUs: which of them the core takes where they lie."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from herring import _core
from herring.errors import HerringError
from herring.torch.tensors import warn_once

__all__ = ["Streams", "common_gpu", "exported", "gpu_of"]


@functools.cache
def _takes(index: int) -> bool:
    """Whether the core copies from and to a GPU; if not, it says so once."""
    try:
        device = _core.describe_devices()["devices"][index]
    except (HerringError, IndexError) as error:
        why = str(error) or f"the driver sees no GPU {index}"
    else:
        if device["stream_memory"]:
            return True
        why = f"{device['name']} has no memory operations on streams"
    warn_once(
        f"gpu {index}",
        f"herring.torch: tensors of cuda:{index} are copied to host memory and back by torch, "
        f"which waits for each of them ({why})",
    )
    return False


def gpu_of(tensor: torch.Tensor) -> int | None:
    """The GPU that a tensor lies on; None: on none, or one from which the core takes no tensors."""
    if tensor.device.type != "cuda" or torch.version.cuda is None:
        return None
    index = torch.cuda.current_device() if tensor.device.index is None else tensor.device.index
    return index if _takes(index) else None


def common_gpu(tensors: Iterable[torch.Tensor]) -> int | None:
    """The GPU on which all of them lie; None: there is no such."""
    found = {gpu_of(tensor) for tensor in tensors}
    return found.pop() if len(found) == 1 else None


def exported(tensor: torch.Tensor) -> Any:
    """What the core takes for a tensor on a GPU."""
    return tensor


class Streams:
    """Lets what one stream of a device does follow what others did before."""

    def __init__(self) -> None:
        self._last: torch.cuda.Stream | None = None

    def join(self, tensor: torch.Tensor) -> None:
        """The current stream goes on after the one that was current at the last call."""
        if tensor.device.type != "cuda":
            return
        stream = torch.cuda.current_stream(tensor.device)
        if self._last is not None and self._last != stream:
            stream.wait_stream(self._last)
        self._last = stream
