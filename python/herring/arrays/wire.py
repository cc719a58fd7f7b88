"""The types in which gradients travel between nodes."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from herring import _core
from herring.arrays.arguments import number_of, shown, text_of
from herring.errors import InvalidArgumentError

__all__ = ["TopK"]

#: The names of wire dtypes to which processors round, because no kernel does.
PACKED_DTYPES: tuple[str, ...] = _core.PACKED_DTYPES
_RATIOS = [float(name[5:]) for name in PACKED_DTYPES if name.startswith("topk:")]


@dataclasses.dataclass(frozen=True)
class TopK:
    """Lets only the largest numbers of gradients travel, as a `wire_dtype`.

    Gradients are cut into blocks of ``255 / ratio`` numbers, in the order of a fusion buffer. Of
    each block a node sends the 255 numbers of largest magnitude, in bfloat16, with their places.
    Servers add them, and answer with the 255 largest sums. What was not sent, and what was sent of
    sums that were not among the largest, stays with the node and is added to its next gradients. So
    only the rounding of averages is lost, and each way takes `ratio` of float32's bytes, whatever
    the number of nodes.
    The selection of largest sums is that of gTop-k (Shi et al., ICDCS 2019).

    Attributes:
      ratio: The share of the numbers that travel: 0.005, 0.01, 0.02, 0.05 or 0.1.

    Raises:
      InvalidArgumentError: The ratio is none of these.
    """

    ratio: float = 0.01

    def __post_init__(self) -> None:
        if number_of(self.ratio, "ratio") not in _RATIOS:
            raise InvalidArgumentError(
                f"ratio is {shown(self.ratio)}; it must be one of {', '.join(map(str, _RATIOS))}"
            )

    def __str__(self) -> str:
        return f"topk:{float(self.ratio)}"


#: A type for both ways, an 8-bit type for contributions and the type of results, or `TopK`.
WireDType: TypeAlias = "str | tuple[str, str] | TopK"


def wire_of(wire_dtype: Any) -> str:
    """Returns the core's name of a wire dtype, such as "fp8" or "fp8/bfloat16"; "" for None."""
    if wire_dtype is None:
        return ""
    if isinstance(wire_dtype, TopK):
        return str(wire_dtype)
    if not isinstance(wire_dtype, (tuple, list)):
        return text_of(wire_dtype, "wire_dtype")
    pairs = [name for name in PACKED_DTYPES if "/" in name]
    name = "/".join(map(str, wire_dtype))
    if name not in pairs:
        raise InvalidArgumentError(
            f"wire_dtype is {shown(wire_dtype)}; a pair is an 8-bit type for contributions and the "
            f"type of results, one of {', '.join(str(tuple(pair.split('/'))) for pair in pairs)}"
        )
    return name


def is_packed(wire: str | None) -> bool:
    """Returns whether this wire dtype, by the core's name, loses what is added to later rounds."""
    return wire in PACKED_DTYPES
