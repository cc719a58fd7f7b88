"""How arrays travel: as they are, or in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from herring.horovod.common.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Floating-point arrays travel as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """In float16, and the dtype that it had."""
        dtype = np.dtype(tensor.dtype)
        return (tensor.astype("float16") if dtype.kind == "f" else tensor), dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """In the dtype that it had."""
        return tensor.astype(ctx)


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
