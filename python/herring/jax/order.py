"""The order in which a program starts its calls: that in which it was traced.

XLA executes a small program one step after the other, in an order that depends on shapes. If it did
not start one call before another was complete, ranks with other shapes (a smaller last batch) could
wait for each other. So the start of each call takes a token that the one before has made.

Tokens belong to the trace of one program: calls in a loop's body, or in a compiled function that
another one calls, are ordered among themselves.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

__all__ = ["TOKEN", "last_token", "note_token", "programs_of", "traces"]

TOKEN = jax.ShapeDtypeStruct((8,), np.uint8)
_FIRST = np.zeros(TOKEN.shape, TOKEN.dtype)


class _Started(threading.local):
    """By the thread that traces: programs that are being traced, each with its last token."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Any]] = []


_started = _Started()


def traces() -> list[Any]:
    """JAX's traces from the innermost on: of derivatives, loops, programs."""
    try:
        from jax.extend.core import get_opaque_trace_state
    except ImportError:
        from jax.core import get_opaque_trace_state
    reference = getattr(get_opaque_trace_state(convention="flax"), "_trace_ref", None)
    trace = reference() if callable(reference) else None
    found = []
    while trace is not None:
        found.append(trace)
        trace = getattr(trace, "parent_trace", None)
    return found


def programs_of(found: list[Any]) -> list[Any]:
    """Those of `traces` that are of programs."""
    return [trace for trace in found if type(trace).__name__ == "DynamicJaxprTrace"]


def last_token() -> Any:
    """What the last call of the program that is being traced has made; a first one if none has."""
    programs = programs_of(traces())
    stack = _started.stack
    while stack and not any(stack[-1][0] is program for program in programs):
        stack.pop()  # traced to its end
    return stack[-1][1] if stack and stack[-1][0] is programs[0] else _FIRST


def note_token(token: Any) -> None:
    """Makes it the last one of the program that is being traced."""
    programs = programs_of(traces())
    if not programs or jax.config.jax_check_tracer_leaks:  # which a kept token would be
        return
    program, stack = programs[0], _started.stack
    while hasattr(token, "primal"):  # of a derivative that is being made
        token = token.primal
    if getattr(token, "_trace", None) is not program:
        return
    if stack and stack[-1][0] is program:
        stack.pop()
    stack.append((program, token))
