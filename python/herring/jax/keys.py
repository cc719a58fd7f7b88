"""Keys: what a collective of a compiled program is called, the same on all ranks.

XLA executes what does not depend on each other in any order, so an operation is known by its place
in the program, and natively by how often that was executed. A key says the kind, where it is called
(or the name that it was given), how often that place was passed before in the same trace, and
roughly what it is called with. Ranks trace the same program, but not equally often (a last batch
may be smaller): nothing is counted beyond one trace.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import jax

from herring.errors import InvalidArgumentError
from herring.jax.order import programs_of, traces

__all__ = ["is_traced", "key_of"]

_LIBRARIES = ("herring", "jax", "optax", "flax", "keras")  # whose frames are no place of a call
_LONGEST = 200  # characters of a name

_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # by trace


def _place() -> str:
    """File and line that call: the innermost of the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in _LIBRARIES:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "call"


def key_of(kind: str, name: str | None, leaves: Sequence[Any]) -> str:
    """The key of this call.

    Args:
      kind: of the collective.
      name: that was given; None: the place of the call.
      leaves: arrays, or what has a dtype and dimensions.

    Raises:
      InvalidArgumentError: `name` is empty or too long.
    """
    if name is not None and not 0 < len(name) <= _LONGEST:
        raise InvalidArgumentError(
            f"the name of an operation has {len(name)} characters; 1 to {_LONGEST} are allowed"
        )
    around = [trace for trace in traces() if hasattr(trace, "parent_trace")]
    # Sizes are left out: ranks that disagree about them are told so when their calls meet.
    kinds = [(str(leaf.dtype), leaf.ndim) for leaf in leaves]
    rough = zlib.crc32(repr(kinds).encode()) or 1
    # Outside of a program calls have the order of their caller.
    where = name or (_place() if around else "eager")
    base = f"jax.{kind}.{where}.{rough:08x}"
    if not around:
        return base
    # A compiled function inside of another may come from a cache, where nothing is counted.
    if (depth := len(programs_of(around))) > 1:
        base += f"@{depth}"
    counts = _passed.setdefault(around[-1], Counter())
    number = counts[base]
    counts[base] += 1
    return f"{base}#{number}" if number else base


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether these are values of a program that is being made."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
