"""The operators that the functions of `herring.torch` take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, cast

from herring.arrays import arguments

if TYPE_CHECKING:
    from torch.distributed import ReduceOp

    #: The name of an operator, or the member of `torch.distributed.ReduceOp`.
    Operator: TypeAlias = arguments.Operator | ReduceOp | ReduceOp.RedOpType
else:  # torch may have been built without torch.distributed
    Operator = Any


def name_of(op: Operator) -> arguments.Operator:
    """Returns `op` unchanged; the functions of `herring` take members of ReduceOp, too."""
    return cast("arguments.Operator", op)
