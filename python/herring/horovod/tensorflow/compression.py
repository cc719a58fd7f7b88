"""Compressors for TensorFlow tensors: none, or conversion to 16 bits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from herring.horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Converts a floating-point tensor to float16; also returns its original dtype."""
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Converts a tensor back to its original dtype, which is `ctx`."""
        return tf.cast(tensor, ctx)


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
