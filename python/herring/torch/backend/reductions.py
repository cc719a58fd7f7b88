"""Maps torch's operators and dtypes to those of the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from herring.errors import InvalidArgumentError

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
_NATIVE = frozenset((*_FLOATS, *_INTEGERS, torch.bool))
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_NAMES = {
    "SUM": "sum",
    "AVG": "average",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "and",
    "BOR": "or",
    "BXOR": "xor",
    "PREMUL_SUM": "premultiplied sum",
}
_FOLDS: dict[str, Any] = {
    "sum": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}

Fold = Callable[[torch.Tensor], torch.Tensor]


class Reduction(NamedTuple):
    """How a reduction is done."""

    op: str  # the core's operator; empty if the core has none and `fold` is used
    prescale: float
    # A function that turns a contiguous tensor into a view that the core takes.
    wire: Callable[[torch.Tensor], torch.Tensor]
    # The number by which a sum of integers is divided, towards zero; 1 if not divided.
    divisor: int = 1
    fold: Fold | None = None  # a function that turns [ranks, n] of the tensor's dtype into [n]
    # What ranks must agree on and the core does not see; empty if the core sees everything.
    about: str = ""


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous tensor as a flat tensor of a dtype that the core moves."""
    flat = tensor.reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat if flat.dtype in _NATIVE else flat.view(_WORDS[flat.element_size()])


def place_for(output: torch.Tensor, moved: torch.Tensor) -> torch.Tensor | None:
    """Returns the output's memory, flat, as a place for a result; None if it cannot be used."""
    target = output.data
    if target.device.type != "cpu" or not target.is_contiguous() or target.numel() == 0:
        return None
    apart = target.untyped_storage().data_ptr() != moved.untyped_storage().data_ptr()
    return movable(target) if apart else None


def typed(data: np.ndarray, like: torch.dtype) -> torch.Tensor:
    """Returns received bytes, [n], as a flat tensor of a dtype, without a copy."""
    return torch.from_numpy(data).view(like)


def _operator(op: Any) -> tuple[str, Any]:
    """Returns the name of one of torch's operators, and the factor that comes with it."""
    kind, factor = getattr(op, "op", op), None
    name = str(kind).rpartition(".")[2]
    if name == "PREMUL_SUM":
        factor = op.__getstate__()[1]
        factor = float(factor.item() if isinstance(factor, torch.Tensor) else factor)
    if name not in _NAMES:
        raise InvalidArgumentError(f"the operator is {op}; it must be one of {', '.join(_NAMES)}")
    return _NAMES[name], factor


def reduction_of(op: Any, dtype: torch.dtype, ranks: int) -> Reduction:
    """Returns how an operator of torch is applied to a dtype."""
    name, factor = _operator(op)
    found = _reduction(name, factor, dtype, ranks)
    if dtype in _NATIVE and found.fold is None and found.divisor == 1:
        return found
    return found._replace(about=f"{name} of {dtype}")


def _reduction(name: str, factor: Any, dtype: torch.dtype, ranks: int) -> Reduction:
    prescale = 1.0
    if name == "premultiplied sum":
        if not (dtype in _FLOATS or dtype.is_complex):
            raise InvalidArgumentError(f"PREMUL_SUM is for floats, not {dtype}")
        name, prescale = "sum", factor
    if dtype.is_complex:
        if name in ("sum", "average"):
            return Reduction(name, prescale, torch.view_as_real)
        if name == "product":
            return Reduction("", 1.0, _same, fold=_numpy_fold(np.multiply))
        raise InvalidArgumentError(f"{name} is not defined for complex numbers ({dtype})")
    if name in ("and", "or", "xor"):
        if dtype.is_floating_point:
            raise InvalidArgumentError(f"bitwise operators are for integers, not {dtype}")
        if dtype == torch.bool and name != "xor":
            return Reduction({"and": "min", "or": "max"}[name], 1.0, _same)
        return Reduction("", 1.0, _same, fold=_numpy_fold(_FOLDS[name]))
    if dtype in _FLOATS:
        return Reduction(name, prescale, _same)
    if dtype.is_floating_point:  # 8-bit floats are reduced in float32
        return Reduction("", 1.0, _same, fold=_float_fold(name, dtype))
    if dtype == torch.bool and name == "average":
        raise InvalidArgumentError("average is not defined for torch.bool")
    divisor = 1
    if name == "average":
        name, divisor = "sum", ranks
    if dtype in _NATIVE:
        return Reduction(name, 1.0, _same, divisor)
    if name in ("sum", "product") and divisor == 1:  # the bits are the same with and without a sign

        def signed(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.view(_WORDS[tensor.element_size()])

        return Reduction(name, 1.0, signed)
    return Reduction("", 1.0, _same, fold=_numpy_fold(_FOLDS[name], divisor))


def _numpy_fold(function: Any, divisor: int = 1) -> Fold:
    def fold(rows: torch.Tensor) -> torch.Tensor:
        given = rows.numpy()
        found = function.reduce(given, axis=0, dtype=given.dtype)
        if divisor > 1:
            found = found // np.array(divisor, found.dtype)
        return torch.from_numpy(found)

    return fold


def _float_fold(name: str, dtype: torch.dtype) -> Fold:
    def fold(rows: torch.Tensor) -> torch.Tensor:
        wide = rows.to(torch.float32)
        if name == "average":
            found = wide.mean(0)
        elif name == "product":
            found = wide.prod(0)
        else:
            found = {"sum": torch.sum, "min": torch.amin, "max": torch.amax}[name](wide, 0)
        return found.to(dtype)

    return fold


def divided(tensor: torch.Tensor, divisor: int) -> torch.Tensor:
    """Divides integers towards zero, in place."""
    return tensor if divisor == 1 else tensor.div_(divisor, rounding_mode="trunc")
