"""Compressors for gradients of Keras optimizers: none, or conversion to 16 bits."""

from __future__ import annotations

from herring.horovod.common.compression import NoneCompressor

__all__ = ["Compression", "FP16Compressor", "NoneCompressor"]


class FP16Compressor:
    """Sends float32 gradients between nodes as float16, and adds them in float32."""


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
