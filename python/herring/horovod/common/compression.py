"""Base classes of the gradient compressors of all frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Compressor:
    """Compresses a tensor before a collective and decompresses the result.

    Scripts may derive their own compressors from this class.
    """

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Compresses a tensor.

        Returns:
          The tensor to send, and a context for `decompress`.
        """
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns a received tensor in its original form; `ctx` is the context of `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Does not change tensors."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the tensor itself."""
        return tensor


class HalfCompressor(Compressor):
    """Sends floating-point tensors as float16; each framework sets the three attributes."""

    float16: Any
    is_float: Callable[[Any], bool]
    cast: Callable[[Any, Any], Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Converts a floating-point tensor to float16; also returns its original dtype."""
        return (cls.cast(tensor, cls.float16) if cls.is_float(tensor) else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Converts a tensor back to its original dtype, which is `ctx`."""
        return cls.cast(tensor, ctx)


def is_half(compression: Any) -> bool:
    """Returns whether `compression` is Herring's `FP16Compressor` itself, for any framework."""
    module = getattr(compression, "__module__", "")
    return module.startswith("herring.horovod.") and compression.__name__ == "FP16Compressor"
