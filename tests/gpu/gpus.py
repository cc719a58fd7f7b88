"""Arrays on real GPUs, made with torch, for the programs of `tests/python/programs/gpu_*.py`.

This module has the interface of `tests/support/gpus.py`, whose driver is a stand-in for CUDA's.
For what only the stand-in can count, this driver returns fixed values.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

_HERE = Path(__file__).resolve().parent
# Programs find this module, and what programs share.
_PATHS = (_HERE, _HERE.parent / "python" / "programs")
ENVIRONMENT = {
    "PYTHONPATH": ":".join([*map(str, _PATHS), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
}


class Driver:
    """The real driver, which adds no jitter and counts nothing."""

    def __init__(self) -> None:
        _cycles_per_second()  # Waits for the device, so it must come first.

    def count(self) -> int:
        return torch.cuda.device_count()

    def jitter(self, microseconds: int) -> None:
        del microseconds

    def bytes(self) -> tuple[int, int, int] | None:
        return None

    def threads(self) -> int:
        return 1

    def waits(self) -> int:
        return 0

    def calls(self, function: bytes) -> int:
        del function
        return 0


class GpuArray:
    """A tensor on a GPU that exports DLPack; work on it is queued in a stream of its own."""

    def __init__(self, values, device: int = 0, tells: bool = True) -> None:
        self.tells = tells
        place = torch.device("cuda", device)
        with torch.cuda.device(place):
            self._stream = torch.cuda.Stream()
        values = np.ascontiguousarray(values)
        self.dtype = values.dtype
        self.tensor = torch.from_numpy(values.copy()).to(place)
        # Does not wait for the whole device: Herring's streams on it may wait for other ranks.
        self._stream.wait_stream(torch.cuda.current_stream(place))

    def get(self) -> np.ndarray:
        with torch.cuda.stream(self._stream):
            return self.tensor.cpu().numpy()

    def fill(self, value: float, microseconds: int = 0) -> None:
        """Queues a kernel that takes `microseconds`, then one that sets all elements to `value`."""
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(int(microseconds * 1e-6 * _cycles_per_second()))
            self.tensor.fill_(value)

    def store(self, values, microseconds: int = 0) -> None:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(int(microseconds * 1e-6 * _cycles_per_second()))
            self.tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)), non_blocking=False)

    def scale(self, factor: float, microseconds: int = 0) -> None:
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(int(microseconds * 1e-6 * _cycles_per_second()))
            self.tensor.mul_(factor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.tensor.device.index

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        if not self.tells:
            raise AttributeError("__cuda_array_interface__")
        return {"stream": self._stream.cuda_stream}

    def __dlpack__(self, *, stream: int | None = None):
        if stream not in (None, -1):
            torch.cuda.ExternalStream(stream, self.tensor.device).wait_stream(self._stream)
        return self.tensor.__dlpack__(stream=-1)


_rate = 0.0


def _cycles_per_second() -> float:
    global _rate
    if not _rate:
        torch.cuda._sleep(1_000_000)
        torch.cuda.synchronize()
        start = time.monotonic()
        torch.cuda._sleep(20_000_000)
        torch.cuda.synchronize()
        _rate = 20_000_000 / (time.monotonic() - start)
    return _rate
