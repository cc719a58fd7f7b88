"""Keeps torch.compile out of what exchanges data."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

from herring.torch.compiled import untraced as without_trace

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def untraced(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Returns the function, which torch.compile does not trace, nor what it calls."""
    return without_trace(
        function,
        "herring exchanges data here, and graphs end. For fullgraph=True compile the module alone, "
        "without collectives and the optimizer: torch.compile(module, fullgraph=True)",
    )


def level_of_program() -> int:
    """Returns the caller's `stacklevel` for a warning about the line of the program.

    How many frames lie between depends on whether torch.compile is in use.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        level, frame = level + 1, frame.f_back
    return level


def _is_between(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("herring", "torch")
