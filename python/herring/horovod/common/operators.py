"""The operators of Horovod's API, and what calls with them have in common."""

from __future__ import annotations

from typing import Any

from herring.errors import InvalidArgumentError

__all__ = [
    "OPERATORS",
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "check_gradient_options",
    "check_passes",
    "operator_of",
    "operator_or_average",
    "require_linear",
    "scattering_operator",
]

Average, Sum, Adasum, Min, Max, Product = range(6)
OPERATORS = {Average: "average", Sum: "sum", Min: "min", Max: "max", Product: "product"}
_NAMES = {**OPERATORS, Adasum: "adasum"}


def operator_of(op: Any, kind: str) -> str:
    """Herring's name of Horovod's operator; "adasum" is Horovod's alone.

    Raises:
      InvalidArgumentError: there is no such operator.
    """
    if op not in _NAMES:
        raise InvalidArgumentError(
            f"{kind}: op is {op!r}; it must be hvd.Average, Sum, Adasum, Min, Max or Product"
        )
    return _NAMES[op]


def scattering_operator(op: Any, kind: str) -> str:
    """As `operator_of`, for a reduce-scatter.

    Raises:
      InvalidArgumentError: there is no such operator, or it is Adasum.
    """
    if op == Adasum:
        raise InvalidArgumentError(f"{kind}: op is hvd.Adasum; use allreduce for it")
    return operator_of(op, kind)


def operator_or_average(op: Any, average: bool | None) -> Any:
    """The operator, where the older argument `average` may say it.

    Raises:
      InvalidArgumentError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError(
            f"op is {op!r} and average is {average!r}; give op only (hvd.Average or hvd.Sum)"
        )
    return Average if average else Sum


def require_linear(op: Any, kind: str, instead: str) -> None:
    """Raises InvalidArgumentError unless a reduction by `op` has a gradient.

    Args:
      op: Horovod's operator.
      kind: Horovod's name of the collective.
      instead: what to call on a tensor that needs none.
    """
    if op not in (Average, Sum):
        raise InvalidArgumentError(
            f"{kind} with op {operator_of(op, kind)!r} has no gradient: use hvd.Average or "
            f"hvd.Sum, or {instead}"
        )


def check_gradient_options(op: Any, gradient_predivide_factor: float) -> None:
    """Checks what optimizers of all frameworks take.

    Raises:
      InvalidArgumentError: an operator that is not for gradients, or a factor that goes with
        Average only.
    """
    if op not in (Average, Sum, Adasum):
        raise InvalidArgumentError(f"op is {op!r}; it must be hvd.Average, hvd.Sum or hvd.Adasum")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError(
            f"gradient_predivide_factor is {gradient_predivide_factor}; with another op than "
            "hvd.Average it must be 1"
        )


def check_passes(passes: Any) -> None:
    """Raises InvalidArgumentError unless it is a number of backward passes."""
    if not isinstance(passes, int) or passes < 1:
        raise InvalidArgumentError(
            f"backward_passes_per_step is {passes!r}; it must be an integer, 1 or more"
        )
