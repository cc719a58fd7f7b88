"""Compressors for MXNet arrays: none, or conversion to 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from herring.horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Converts a floating-point array to float16; also returns its original dtype."""
        dtype = np.dtype(tensor.dtype)
        return (tensor.astype("float16") if dtype.kind == "f" else tensor), dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Converts an array back to its original dtype, which is `ctx`."""
        return tensor.astype(ctx)


class Compression:
    """The available compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor
