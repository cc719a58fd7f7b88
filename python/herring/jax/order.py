"""Makes a program start its calls in the order in which they were traced.

XLA executes a small program step by step, in an order that depends on shapes. If a call started
only after another one was complete, ranks with other shapes (a smaller last batch) could wait for
each other. So the start of each call takes a token that the start of the previous call has made.

Tokens belong to the trace of one program. Calls in the body of a loop, or in an inner compiled
function, are ordered among themselves only.
"""

from __future__ import annotations

import threading
from typing import Any

import jax
import numpy as np

TOKEN = jax.ShapeDtypeStruct((8,), np.uint8)
_FIRST = np.zeros(TOKEN.shape, TOKEN.dtype)


class _Started(threading.local):
    """The programs that this thread is tracing, each with its last token."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Any]] = []


_started = _Started()


def traces() -> list[Any]:
    """Returns JAX's traces (of derivatives, loops and programs), the innermost first."""
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
    """Returns the traces of programs among those of `traces`."""
    return [trace for trace in found if type(trace).__name__ == "DynamicJaxprTrace"]


def last_token() -> Any:
    """Returns the last token of the program that is being traced, or a first one."""
    programs = programs_of(traces())
    stack = _started.stack
    while stack and not any(stack[-1][0] is program for program in programs):
        stack.pop()  # its trace has ended
    return stack[-1][1] if stack and stack[-1][0] is programs[0] else _FIRST


def note_token(token: Any) -> None:
    """Makes `token` the last one of the program that is being traced."""
    programs = programs_of(traces())
    if not programs or jax.config.jax_check_tracer_leaks:  # a kept token counts as a leak
        return
    program, stack = programs[0], _started.stack
    while hasattr(token, "primal"):  # the token belongs to a derivative
        token = token.primal
    if getattr(token, "_trace", None) is not program:
        return
    if stack and stack[-1][0] is program:
        stack.pop()
    stack.append((program, token))
