"""Compressors for TensorFlow tensors: none, or conversion to 16 bits."""

from __future__ import annotations

import tensorflow as tf

from herring.horovod.common.compression import Compressor, HalfCompressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(HalfCompressor):
    """Sends floating-point tensors as float16."""

    float16 = tf.float16
    is_float = staticmethod(lambda tensor: tensor.dtype.is_floating)
    cast = staticmethod(tf.cast)


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
