"""Compressors for PyTorch tensors: none, 16 bits, or 8 bits with scales."""

from __future__ import annotations

import torch

from herring.horovod.common.compression import (
    Compressor,
    FP8Compressor,
    HalfCompressor,
    INT8Compressor,
    NoneCompressor,
)

__all__ = [
    "Compression",
    "Compressor",
    "FP8Compressor",
    "FP16Compressor",
    "INT8Compressor",
    "NoneCompressor",
]


class FP16Compressor(HalfCompressor):
    """Sends floating-point tensors as float16."""

    float16 = torch.float16
    is_float = staticmethod(torch.is_floating_point)
    cast = staticmethod(torch.Tensor.to)


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    fp8 = FP8Compressor
    int8 = INT8Compressor
