"""How tensors travel: as they are, or in 16 bits."""

from __future__ import annotations

from typing import Any

import torch

from herring.horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Floating-point tensors travel as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """In float16, and the dtype that it had."""
        return (tensor.half() if tensor.is_floating_point() else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """In the dtype that it had."""
        return tensor.to(ctx)


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
