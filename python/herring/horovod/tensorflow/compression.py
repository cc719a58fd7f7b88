"""How tensors travel: as they are, or in 16 bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from herring.horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Floating-point tensors travel as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """In float16, and the dtype that it had."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """In the dtype that it had."""
        return tf.cast(tensor, ctx)


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
