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
        """Returns the tensor to send, and a context for `decompress`."""
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


class FP8Compressor(NoneCompressor):
    """Lets an optimizer's gradients travel between nodes in 8 bits (E4M3 with scales).

    They are added in float32, and what rounding loses is added to the next gradients. In calls for
    single tensors it changes nothing. It is Herring's own; Horovod has none.
    """


class INT8Compressor(NoneCompressor):
    """The same with 8-bit integers and scales."""


# The dtypes between nodes. Each framework has an FP16Compressor of its own.
_WIRE_DTYPES = {
    "NoneCompressor": None,
    "FP16Compressor": "float16",
    "FP8Compressor": "fp8",
    "INT8Compressor": "int8",
}


def is_own(compression: Any) -> bool:
    """Returns whether `compression` is a compressor of Herring itself, for any framework."""
    module = getattr(compression, "__module__", "")
    return module.startswith("herring.horovod.") and compression.__name__ in _WIRE_DTYPES


def wire_dtype_of(compression: Any) -> str | None:
    """Returns the dtype in which gradients travel with one of Herring's own compressors."""
    return _WIRE_DTYPES[compression.__name__]


def is_half(compression: Any) -> bool:
    """Returns whether `compression` is Herring's `FP16Compressor` itself, for any framework."""
    return is_own(compression) and wire_dtype_of(compression) == "float16"
