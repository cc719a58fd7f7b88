"""Compressors for PyTorch tensors: none, or conversion to 16 bits."""

from __future__ import annotations

import torch

from herring.horovod.common.compression import Compressor, HalfCompressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(HalfCompressor):
    """Sends floating-point tensors as float16."""

    float16 = torch.float16
    is_float = staticmethod(torch.is_floating_point)
    cast = staticmethod(torch.Tensor.to)


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
