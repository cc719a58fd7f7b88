"""The names of an optimizer's parameters, for messages and for names of operations."""

from __future__ import annotations

from typing import Any

import torch

from herring.arrays.arguments import shown
from herring.errors import InvalidArgumentError

Named = list[tuple[str, torch.nn.Parameter]]


def listed(named_parameters: Any) -> Named | None:
    """Returns the given pairs of names and parameters; an error if two have one name."""
    if named_parameters is None:
        return None
    try:
        pairs = list(named_parameters)
    except (TypeError, RuntimeError):
        pairs = [named_parameters]
    for pair in pairs:
        kinds = [str, torch.Tensor] if isinstance(pair, (tuple, list)) and len(pair) == 2 else []
        if not kinds or not all(map(isinstance, pair, kinds)):
            raise InvalidArgumentError(
                f"named_parameters contains {shown(pair)}; it must be a sequence of tuples (name, "
                "parameter), such as model.named_parameters()"
            )
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgumentError(
            f"named_parameters contains names more than once: {', '.join(twice)}; give each "
            "parameter a name of its own"
        )
    return [(name, parameter) for name, parameter in pairs]


def require_all(optimizer: torch.optim.Optimizer, known: Named | None, *, frozen: bool) -> None:
    """Checks that named parameters, if there are any, include all that the optimizer has.

    Args:
      frozen: Whether those that require no gradient must be there, too.
    """
    if known is None:
        return
    numbers = {id(parameter) for _, parameter in known}
    missing = [
        f"{name}, {list(parameter.shape)}"
        for name, parameter in numbered(optimizer)
        if id(parameter) not in numbers and (frozen or parameter.requires_grad)
    ]
    if missing:
        raise InvalidArgumentError(
            f"named_parameters lacks {len(missing)} of the optimizer's parameters "
            f"({'; '.join(missing[:5])}); pass model.named_parameters() of all models that the "
            "optimizer trains"
        )


def numbered(optimizer: torch.optim.Optimizer) -> Named:
    """Returns the optimizer's parameters with names made of their places."""
    return [
        (f"group{number}.parameter{i}", parameter)
        for number, group in enumerate(optimizer.param_groups)
        for i, parameter in enumerate(group["params"])
    ]


def named_in(optimizer: torch.optim.Optimizer, known: Named | None) -> Named:
    """Returns the optimizer's parameters in the order of `known` with their names there, if any."""
    found = numbered(optimizer)
    if known is None:
        return found
    mine = {id(parameter) for _, parameter in found}
    return [(name, parameter) for name, parameter in known if id(parameter) in mine]
