"""How gradients travel: as they are, or in 16 bits."""

from __future__ import annotations

from herring.horovod.common.compression import NoneCompressor

__all__ = ["Compression", "FP16Compressor", "NoneCompressor"]


class FP16Compressor:
    """float32 gradients travel between nodes as float16, and are added in float32."""


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
