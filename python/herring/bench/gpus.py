"""Arrays on a GPU for ``--device cuda``, allocated by PyTorch."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring.base.parts import install_command
from herring.bench import pattern
from herring.bench.arrays import Prepared
from herring.errors import ConfigurationError


class Gpus:
    """The GPUs that PyTorch sees in this process."""

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
        """Makes GPU number `rank`, modulo the number of GPUs, the current GPU and returns it."""
        import torch

        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return Gpu(device)


class Gpu:
    """One GPU."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.index: int = device.index

    def describe(self) -> str:
        """Returns the GPU's name in this process, and its model."""
        import torch

        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def identity(self) -> str:
        """Returns a text that differs between any two GPUs of a job, or "" if torch is too old.

        The text contains ``NCCL_HOSTID``, which makes NCCL treat one host as several.
        """
        import torch

        uuid = getattr(torch.cuda.get_device_properties(self.device), "uuid", "")
        return f"{os.environ.get('NCCL_HOSTID', '')} {uuid}".strip() if uuid else ""

    def zeros(self, count: int, dtype: str) -> Any:
        """Returns a tensor of `count` zeros on the GPU."""
        import torch

        return torch.zeros(count, dtype=getattr(torch, dtype), device=self.device)

    def exported(self, tensor: Any) -> Any:
        """Returns a tensor on the GPU in a form that Herring accepts."""
        return tensor

    def synchronize(self) -> None:
        """Waits for all work that is queued in the current stream."""
        import torch

        torch.cuda.current_stream(self.device).synchronize()


class GpuArrays:
    """Tensors on a GPU, each with an array in host memory that is used to fill and check it."""

    def __init__(self, gpu: Gpu, tensors: Sequence[Any], dtype: str) -> None:
        self._gpu = gpu
        self._tensors = tensors
        storage = pattern.storage_dtype(dtype)
        self._parts = [np.zeros(tensor.numel(), dtype=storage) for tensor in tensors]

    @classmethod
    def of(cls, gpu: Gpu, counts: Sequence[int], dtype: str) -> GpuArrays:
        """Allocates one tensor for each element count in `counts`."""
        return cls(gpu, [gpu.zeros(count, dtype) for count in counts], dtype)

    @classmethod
    def placed(cls, gpu: Gpu, reduction: Any, counts: Sequence[int], dtype: str) -> GpuArrays:
        """Allocates the arenas of a planned reduction on the GPU, and returns its gradients."""
        import torch

        arenas = [gpu.zeros(nbytes, "uint8") for _, nbytes in reduction.arenas]
        reduction.place([gpu.exported(arena) for arena in arenas])
        gradients = [
            arenas[arena][offset : offset + nbytes].view(getattr(torch, dtype))[:count]
            for (arena, offset, nbytes), count in zip(reduction.placements, counts)
        ]
        return cls(gpu, gradients, dtype)

    def operands(self) -> list[Any]:
        """Returns the tensors in a form that Herring accepts."""
        return [self._gpu.exported(tensor) for tensor in self._tensors]

    def prepared(
        self, run: Callable[[], None], close: Callable[[], Any] = lambda: None
    ) -> Prepared:
        """Wraps ``run``, which reduces these tensors in place, and waits for the work it queues."""

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
        """Returns each tensor and its host array as views of bytes."""
        import torch

        return [
            (tensor.view(torch.uint8), torch.from_numpy(part.view(np.uint8)))
            for tensor, part in zip(self._tensors, self._parts)
        ]
