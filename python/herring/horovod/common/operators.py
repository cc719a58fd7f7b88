"""The operators of Horovod's API, and checks of arguments that use them."""

from __future__ import annotations

from typing import Any

from herring.arrays.arguments import Operator
from herring.errors import InvalidArgumentError

Average, Sum, Adasum, Min, Max, Product = range(6)
OPERATORS: dict[Any, Operator] = {
    Average: "average",
    Sum: "sum",
    Min: "min",
    Max: "max",
    Product: "product",
}
_NAMES: dict[Any, str] = {**OPERATORS, Adasum: "adasum"}


def operator_of(op: Any, kind: str) -> str:
    """Returns Herring's name of one of Horovod's operators, or "adasum", which Herring lacks."""
    if op not in _NAMES:
        raise InvalidArgumentError(
            f"{kind}: op is {op!r}; it must be hvd.Average, Sum, Adasum, Min, Max or Product"
        )
    return _NAMES[op]


def scattering_operator(op: Any, kind: str) -> str:
    """Returns Herring's name of one of Horovod's operators, for a reduce-scatter."""
    if op == Adasum:
        raise InvalidArgumentError(f"{kind}: op is hvd.Adasum; use allreduce for Adasum")
    return operator_of(op, kind)


def operator_or_average(op: int | None, average: bool | None) -> int:
    """Returns the operator that `op` or the older `average` selects; an error if both are given."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError(
            f"op is {op!r} and average is {average!r}; pass op only (hvd.Average or hvd.Sum)"
        )
    return Average if average else Sum


def require_linear(op: Any, kind: str, instead: str) -> None:
    """Raises InvalidArgumentError unless a reduction by `op` has a gradient."""
    if op not in (Average, Sum):
        raise InvalidArgumentError(
            f"{kind} with op {operator_of(op, kind)!r} has no gradient: use hvd.Average or "
            f"hvd.Sum, or {instead}"
        )


def check_gradient_options(op: Any, gradient_predivide_factor: float) -> None:
    """Checks arguments that the optimizers of all frameworks share.

    Raises:
      InvalidArgumentError: the operator cannot be used for gradients, or the factor needs Average.
    """
    if op not in (Average, Sum, Adasum):
        raise InvalidArgumentError(f"op is {op!r}; it must be hvd.Average, hvd.Sum or hvd.Adasum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError(
            f"gradient_predivide_factor is {gradient_predivide_factor}; it must be 1 unless op is "
            "hvd.Average"
        )


def check_passes(passes: Any) -> None:
    """Raises InvalidArgumentError unless `passes` is an integer of at least 1."""
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(
            f"backward_passes_per_step is {passes!r}; it must be an integer, 1 or more"
        )
