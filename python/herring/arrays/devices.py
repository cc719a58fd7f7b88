"""Arrays on GPUs: the streams in which libraries queue work, and how results reach the arrays.

Herring takes any GPU array that exports DLPack (tensors of PyTorch, arrays of CuPy and others).
Herring reads after the work that the library has already queued for an array; work that the library
queues later sees the result. If the library does not tell its stream, the host waits for the result
instead.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

from herring import _core


@functools.cache
def find_compiler() -> None:
    """Tells the core in which folders NVIDIA's wheels have CUDA's run-time compiler.

    The core compiles GPU kernels with it. The core also looks in a framework that has loaded the
    compiler, in the system's folders and in CUDA_HOME.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        for library in sorted(Path(place).glob("*/lib/libnvrtc.so.*")):
            _core.add_compiler_folder(str(library.parent))


def described_gpus() -> dict[str, Any]:
    """Returns the driver, the compiler and the GPUs that this process sees.

    Of each GPU, ``"refused"`` says why Herring cannot use arrays there; "": it can.
    """
    find_compiler()
    described: dict[str, Any] = _core.describe_devices()
    return described


def stream_of(array: Any) -> int | None:
    """Returns the stream (a CUDA handle) in which an array's library queues work, or None."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        # The call that PyTorch's compiler makes; an object for the stream would take 4 us.
        if handle_of := getattr(torch._C, "_cuda_getCurrentRawStream", None):
            return int(handle_of(array.device.index))
        return int(torch.cuda.current_stream(array.device).cuda_stream)
    interface = getattr(array, "__cuda_array_interface__", None)
    stream = interface.get("stream") if isinstance(interface, dict) else None
    return stream if isinstance(stream, int) else None


def check_not_capturing(operation: _core.Operation, array: Any) -> None:
    """Refuses to wait for an operation inside the capture of a CUDA graph.

    A capture must not wait on the host, so this is called before any wait.

    Raises:
      InvalidArgumentError: A stream in which the arrays' library queues work now is being captured.
    """
    streams = {stream_of(one) for one in (array if isinstance(array, list) else [array])}
    operation.check_not_capturing([stream for stream in streams if stream is not None])


def take_back(operation: _core.Operation, array: Any, seconds: float) -> None:
    """Brings the result of a complete operation to the memory in which its arrays lie.

    Args:
      seconds: How long to wait for the copy if the host has to wait; 0 means without a limit.
    """
    streams = {stream_of(one) for one in (array if isinstance(array, list) else [array])}
    known = [stream for stream in streams if stream is not None]
    operation.take_back(known if len(known) == len(streams) else [], seconds)


def return_to(operation: _core.Operation, arrays: list[Any]) -> None:
    """Brings the results of a complete operation on a list to other arrays of its GPU.

    What their library queues from now on comes after that. If it does not tell its stream, the host
    waits for the results instead.
    """
    operation.return_to(arrays, waits=any(stream_of(one) is None for one in arrays))
