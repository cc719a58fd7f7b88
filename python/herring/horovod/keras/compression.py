"""Compressors for gradients of Keras optimizers: none, 16 bits, or 8 bits with scales."""

from __future__ import annotations

from herring.horovod.common.compression import FP8Compressor, INT8Compressor, NoneCompressor

__all__ = ["Compression", "FP8Compressor", "FP16Compressor", "INT8Compressor", "NoneCompressor"]


class FP16Compressor:
    """Sends float32 gradients between nodes as float16, and adds them in float32."""


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
    fp8 = FP8Compressor
    int8 = INT8Compressor
