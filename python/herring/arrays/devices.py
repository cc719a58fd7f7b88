"""Arrays on GPUs: in which streams their libraries queue work, and how results get back there.

Whatever exports DLPack from a GPU is taken (tensors of PyTorch, arrays of CuPy and others). What
its library has queued for an array comes before what Herring reads; what it will queue comes after
the result. Where the library does not tell its stream, the host waits for the result instead.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

from herring import _core

__all__ = ["find_compiler", "return_to", "stream_of", "take_back"]


@functools.cache
def find_compiler() -> None:
    """Tells the core where wheels of NVIDIA's have CUDA's run-time compiler.

    Kernels need it. A framework that has loaded it, the system and CUDA_HOME are asked as well.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        for library in sorted(Path(place).glob("*/lib/libnvrtc.so.*")):
            _core.add_compiler_folder(str(library.parent))


def stream_of(array: Any) -> int | None:
    """The stream in which the library of a GPU's array queues work now, as CUDA's handle.

    Returns:
      None: it does not tell.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.cuda.current_stream(array.device).cuda_stream)
    interface = getattr(array, "__cuda_array_interface__", None)
    stream = interface.get("stream") if isinstance(interface, dict) else None
    return stream if isinstance(stream, int) else None


def take_back(operation: _core.Operation, array: Any, seconds: float) -> None:
    """Brings the result of a complete operation to where its arrays lie.

    Args:
      operation: on arrays of a GPU.
      array: one, or a list of them.
      seconds: to wait for the copy, where the host has to; 0: any time.

    Raises:
      DeviceError: the GPU or its driver has failed.
    """
    streams = {stream_of(one) for one in (array if isinstance(array, list) else [array])}
    operation.take_back([] if None in streams else list(streams), seconds)


def return_to(operation: _core.Operation, arrays: list[Any]) -> None:
    """Brings the results of a complete operation on a list to other arrays of its GPU.

    What their library queues from now on comes after that. If it does not tell its stream, the host
    waits for the results instead.

    Args:
      operation: of a list on a GPU, submitted with `anywhere`.
      arrays: one for each result, with as many bytes.

    Raises:
      MismatchError: an array has another number of bytes.
      DeviceError: the GPU or its driver has failed.
    """
    operation.return_to(arrays, waits=any(stream_of(one) is None for one in arrays))
