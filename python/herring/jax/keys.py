"""Keys: the names of collectives, in compiled programs and outside, the same on all ranks.

XLA may run independent operations in a different order on each rank. So a key names each call's
place in the program, and native code counts how often that place was executed. A key has the kind,
the place of the call (or the name that it was given), and how often the trace has passed the place
before. Ranks trace the same program, but not equally often, since a last batch may be smaller. So
nothing is counted beyond one trace.

A key without a name in a program also has the dtypes and dimensions of the arrays. Programs, and
inner compiled functions that come from a cache, may share a helper that makes the call. XLA may
execute them at the same time, and what they reduce often differs in its dtype.

Outside of programs a key has the kind, the word "eager" and the place of the call. So two ranks
that swap two calls wait for each other until a timeout, instead of mixing their values.
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

_LIBRARIES = ("herring", "jax", "optax", "flax", "keras")  # not places of a call
_LONGEST = 200  # characters of a name

_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # by trace


def _place() -> str:
    """Returns file and line of the innermost user frame."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in _LIBRARIES:
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return "call"


def key_of(kind: str, name: str | None, leaves: Sequence[Any]) -> str:
    """Returns the key of this call.

    Args:
      name: the name that the user gave; None: the place of the call is used.
    """
    if name is not None and not 0 < len(name) <= _LONGEST:
        raise InvalidArgumentError(
            f"the name of an operation has {len(name)} characters; 1 to {_LONGEST} are allowed"
        )
    around = [trace for trace in traces() if hasattr(trace, "parent_trace")]
    # What ranks must agree about is left out where it can be, so that ranks that disagree meet, and
    # get an error that says so.
    if name is not None:
        base = f"jax.{kind}.{name}"
    elif around:
        kinds = [(str(leaf.dtype), leaf.ndim) for leaf in leaves]
        rough = zlib.crc32(repr(kinds).encode()) or 1
        base = f"jax.{kind}.{_place()}.{rough:08x}"
    else:
        # Calls outside of programs meet in the order in which their place makes them. The word
        # keeps them apart from the executions of a program, which are counted on their own.
        base = f"jax.{kind}.eager.{_place()}"
    if not around:
        return base
    # An inner compiled function may come from a cache, and then nothing is counted.
    if (depth := len(programs_of(around))) > 1:
        base += f"@{depth}"
    counts = _passed.setdefault(around[-1], Counter())
    number = counts[base]
    counts[base] += 1
    return f"{base}#{number}" if number else base


def outside_programs(leaves: Sequence[Any]) -> bool:
    """Returns whether a call with these arrays is part of no program and no derivative."""
    around = any(hasattr(trace, "parent_trace") for trace in traces())
    return not around and not is_traced(leaves)


def is_traced(leaves: Sequence[Any]) -> bool:
    """Returns whether some leaf is a value of a program that is being traced."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
