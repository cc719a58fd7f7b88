"""The types in which gradients travel between nodes."""

from __future__ import annotations

from typing import Any, TypeAlias

from herring.arrays.arguments import shown, text_of
from herring.errors import InvalidArgumentError

#: A type for both ways, or an 8-bit type for contributions and the type of results.
WireDType: TypeAlias = "str | tuple[str, str]"

#: The types of 8 bits, to which processors round, because no kernel does.
PACKED_DTYPES = ("fp8", "fp8_e4m3", "fp8_e5m2", "int8")
#: The types in which results may come back from contributions of 8 bits, if not in the same.
RESULT_DTYPES = ("bfloat16", "float16", "float32")


def wire_of(wire_dtype: Any) -> str:
    """Returns the core's name of a wire dtype, such as "fp8" or "fp8/bfloat16"; "" for None."""
    if wire_dtype is None:
        return ""
    if not isinstance(wire_dtype, (tuple, list)):
        return text_of(wire_dtype, "wire_dtype")
    if (
        len(wire_dtype) != 2
        or wire_dtype[0] not in PACKED_DTYPES
        or wire_dtype[1] not in (wire_dtype[0], *RESULT_DTYPES)
    ):
        raise InvalidArgumentError(
            f"wire_dtype is {shown(wire_dtype)}; a pair is one of {', '.join(PACKED_DTYPES)} for "
            f"contributions, and one of {', '.join(RESULT_DTYPES)} for results"
        )
    return wire_dtype[0] if wire_dtype[0] == wire_dtype[1] else "/".join(wire_dtype)


def is_packed(wire: str | None) -> bool:
    """Returns whether contributions in this wire dtype, by the core's name, have 8 bits."""
    return wire is not None and wire.partition("/")[0] in PACKED_DTYPES
