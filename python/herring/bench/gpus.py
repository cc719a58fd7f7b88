"""``--device cuda``: arrays on a GPU, which PyTorch holds there."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.bench import pattern
from herring.bench.arrays import Prepared
from herring.errors import ConfigurationError
from herring.parts import install_command

__all__ = ["Gpu", "GpuArrays", "Gpus"]


class Gpus:
    """The GPUs that PyTorch sees in this process.

    Args:
      option: that asks for them, for messages.

    Raises:
      ConfigurationError: PyTorch is not installed, or sees none.
    """

    def __init__(self, option: str) -> None:
        if importlib.util.find_spec("torch") is None:
            raise ConfigurationError(
                f"{option}: PyTorch holds the arrays on GPUs, and torch is not installed "
                f"({install_command('torch')})"
            )
        import torch

        if not torch.cuda.is_available():
            raise ConfigurationError(
                f"{option}: torch {torch.__version__} sees no GPU; it must be a build for CUDA, "
                "'herring check' and nvidia-smi tell which GPUs there are, and "
                "CUDA_VISIBLE_DEVICES may hide them"
            )

    def of(self, rank: int) -> Gpu:
        """The GPU of a rank, which becomes the current one: number `rank` modulo how many."""
        import torch

        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return Gpu(device)


class Gpu:
    """One GPU.

    Attributes:
      device: for torch.
      index: its number.
    """

    def __init__(self, device: Any) -> None:
        self.device = device
        self.index: int = device.index

    def describe(self) -> str:
        """Its name in this process, and its model."""
        import torch

        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def identity(self) -> str:
        """What tells it from other GPUs of a job, on other hosts too; empty: torch is too old.

        ``NCCL_HOSTID`` is part of it, by which NCCL takes one host for several.
        """
        import torch

        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", "")
        return f"{os.environ.get('NCCL_HOSTID', '')} {uuid}".strip() if uuid else ""

    def zeros(self, count: int, dtype: str) -> Any:
        """A tensor of `count` elements there."""
        import torch

        return torch.zeros(count, dtype=getattr(torch, dtype), device=self.device)

    def exported(self, tensor: Any) -> Any:
        """What Herring takes for a tensor there."""
        return tensor

    def synchronize(self) -> None:
        """Waits for all that is queued in the current stream."""
        import torch

        torch.cuda.current_stream(self.device).synchronize()


class GpuArrays:
    """Tensors on a GPU, each with an array in host memory to fill and to check it."""

    def __init__(self, gpu: Gpu, tensors: Sequence[Any], dtype: str) -> None:
        self._gpu = gpu
        self._tensors = tensors
        storage = pattern.storage_dtype(dtype)
        self._parts = [np.zeros(tensor.numel(), dtype=storage) for tensor in tensors]

    @classmethod
    def of(cls, gpu: Gpu, counts: Sequence[int], dtype: str) -> GpuArrays:
        """New ones of `counts` elements."""
        return cls(gpu, [gpu.zeros(count, dtype) for count in counts], dtype)

    @classmethod
    def placed(cls, gpu: Gpu, reduction: Any, counts: Sequence[int], dtype: str) -> GpuArrays:
        """The gradients of a planned reduction, whose arenas are made on the GPU."""
        import torch

        arenas = [gpu.zeros(nbytes, "uint8") for _, nbytes in reduction.arenas]
        reduction.place([gpu.exported(arena) for arena in arenas])
        gradients = [
            arenas[arena][offset : offset + nbytes].view(getattr(torch, dtype))[:count]
            for (arena, offset, nbytes), count in zip(reduction.placements, counts)
        ]
        return cls(gpu, gradients, dtype)

    def operands(self) -> list[Any]:
        """What Herring takes for each."""
        return [self._gpu.exported(tensor) for tensor in self._tensors]

    def prepared(
        self, run: Callable[[], None], close: Callable[[], Any] = lambda: None
    ) -> Prepared:
        """``run``, which reduces these tensors in place, and the wait for what it has queued."""

        def run_through() -> None:
            run()
            self._gpu.synchronize()

        return Prepared(run_through, self._parts, close, self._load, self._store)

    def _load(self) -> None:
        for tensor, host in self._pairs():
            tensor.copy_(host)
        self._gpu.synchronize()

    def _store(self) -> None:
        for tensor, host in self._pairs():
            host.copy_(tensor)

    def _pairs(self) -> list[tuple[Any, Any]]:
        """Each tensor and its array, as bytes."""
        import torch

        return [
            (tensor.view(torch.uint8), torch.from_numpy(part.view(np.uint8)))
            for tensor, part in zip(self._tensors, self._parts)
        ]
