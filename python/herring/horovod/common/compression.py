"""What compressors of all frameworks have in common."""

from __future__ import annotations

from typing import Any

__all__ = ["Compressor", "NoneCompressor", "is_half"]


class Compressor:
    """What makes a tensor smaller and brings it back. Scripts may derive their own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor that travels, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor that came back, as it was."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """The tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The tensor itself."""
        return tensor


def is_half(compression: Any) -> bool:
    """Whether it is the `FP16Compressor` of any framework here, and not one derived from it."""
    module = getattr(compression, "__module__", "")
    return module.startswith("herring.horovod.") and compression.__name__ == "FP16Compressor"
