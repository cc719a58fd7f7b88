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

__all__ = ["digest_of", "key_of"]

_LIBRARIES = ("herring", "jax", "optax", "flax", "keras")  # whose frames are no place of a call
_LONGEST = 200  # characters of a name

_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # by trace


def _outermost_trace() -> Any:
    """The trace of the program that is being made; None: there is none."""
    try:
        from jax.extend.core import get_opaque_trace_state
    except ImportError:
        from jax.core import get_opaque_trace_state
    reference = getattr(get_opaque_trace_state(convention="flax"), "_trace_ref", None)
    trace, outermost = reference() if callable(reference) else None, None
    while trace is not None and hasattr(trace, "parent_trace"):
        outermost, trace = trace, trace.parent_trace
    return outermost


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
    trace = _outermost_trace()
    # Sizes are left out: ranks that disagree about them are told so when their calls meet.
    rough = digest_of([(str(leaf.dtype), leaf.ndim) for leaf in leaves])
    # Outside of a program calls have the order of their caller.
    where = name or (_place() if trace is not None else "eager")
    base = f"jax.{kind}.{where}.{rough:08x}"
    if trace is None:
        return base
    counts = _passed.setdefault(trace, Counter())
    number = counts[base]
    counts[base] += 1
    return f"{base}#{number}" if number else base


def digest_of(what: Any) -> int:
    """32 bits, not 0, that are equal on all ranks for equal values."""
    return zlib.crc32(repr(what).encode()) or 1


def is_traced(leaves: Sequence[Any]) -> bool:
    """Whether these are values of a program that is being made."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
