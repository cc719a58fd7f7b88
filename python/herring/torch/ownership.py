"""Tells which reducer averages which parameters, and lets reducers pause."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from herring.arrays import runtime
from herring.errors import InvalidArgumentError
from herring.torch.tensors import dtype_name

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# The live reducer that averages a parameter, by id (reducers keep their parameters alive).
_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class Pausable:
    """A reducer that can leave gradients alone for a while."""

    enabled = True
    claimed_in: Any = None

    def retire(self) -> None:
        """Lets go of its parameters after its job has ended; no other rank takes part."""
        raise NotImplementedError

    def _pauses(self) -> None:
        """Notes that a block without averaging begins."""

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Lets gradients of backward passes inside the block accumulate locally."""
        before, self.enabled = self.enabled, False
        self._pauses()
        try:
            yield
        finally:
            self.enabled = before


def retire_ended(parameter: torch.nn.Parameter) -> None:
    """Lets a reducer go that has averaged the parameter in a job that has ended."""
    other = _owners.get(id(parameter))
    if other is not None and not runtime.is_running(other.claimed_in):
        other.retire()


def averages() -> bool:
    """Returns whether any reducer averages gradients in this process."""
    return bool(_owners)


def require_float(name: str, parameter: torch.nn.Parameter) -> None:
    """Refuses a parameter whose gradient, or whose changes, cannot be averaged."""
    if parameter.dtype not in _FLOATS:
        kind = "complex " if parameter.is_complex() else ""
        raise InvalidArgumentError(
            f"parameter {name!r} has the {kind}dtype {dtype_name(parameter.dtype)}, whose "
            "gradients cannot be averaged; supported are float16, bfloat16, float32 and "
            "float64 (a complex parameter can be kept as torch.view_as_real of it)"
        )


def collect(
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]], owner: Any
) -> tuple[list[str], list[torch.nn.Parameter]]:
    """Returns the parameters to average, each once, with their names.

    Args:
      named_parameters: Names and parameters. Frozen, empty and repeated parameters are left out.
      owner: The reducer that asks; its own parameters are not a conflict.

    Raises:
      InvalidArgumentError: A dtype cannot be averaged, or another reducer already averages a
        parameter.
    """
    names: list[str] = []
    parameters: list[torch.nn.Parameter] = []
    seen: set[int] = set()
    for name, parameter in named_parameters:
        if not parameter.requires_grad or not parameter.numel() or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        require_float(name, parameter)
        retire_ended(parameter)
        if _owners.get(id(parameter)) not in (None, owner):
            gc.collect()  # The program may have dropped it, and a cycle of references holds it.
        other = _owners.get(id(parameter))
        if other not in (None, owner):
            raise InvalidArgumentError(
                f"parameter {name!r} is already averaged by {other.name!r}; use either "
                "DistributedDataParallel or DistributedOptimizer for it, once"
            )
        names.append(name)
        parameters.append(parameter)
    return names, parameters


def claim(parameters: Sequence[torch.nn.Parameter], owner: Any) -> None:
    """Records that `owner` averages these parameters."""
    owner.claimed_in = runtime.job()
    for parameter in parameters:
        _owners[id(parameter)] = owner


def release(parameters: Sequence[torch.nn.Parameter], owner: Any) -> None:
    """Releases those of the parameters that `owner` has claimed."""
    for parameter in parameters:
        if _owners.get(id(parameter)) is owner:
            del _owners[id(parameter)]
