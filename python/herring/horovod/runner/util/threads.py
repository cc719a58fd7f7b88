"""Functions that run in threads of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from herring.errors import InvalidArgumentError

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a function in a thread.

    Args:
      target: the function.
      args: what it is called with.
      name: of the thread.
      daemon: whether the process may end before the function does.
      silent: whether what it raises is dropped instead of printed.

    Returns:
      The thread, which runs.

    Raises:
      InvalidArgumentError: `args` is not a tuple.
    """
    _require_tuple(args)

    def run() -> None:
        with contextlib.suppress(*([Exception] if silent else [])):
            target(*args)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Calls a function in a thread once an event is set.

    Args:
      event: what is waited for.
      func: the function.
      args: what it is called with.
      stop: when this event is set first, the function is not called.
      check_stop_interval_s: how often `stop` is looked at, in seconds.
      daemon: as of `in_thread`; a thread that is not a daemon needs `stop`.
      silent: as of `in_thread`.

    Returns:
      The thread, which runs.

    Raises:
      InvalidArgumentError: there is no event, no `stop` where it is needed, or `args` is not a
        tuple.
    """
    if event is None:
        raise InvalidArgumentError("event is None; it must be a threading.Event")
    if stop is None and not daemon:
        raise InvalidArgumentError("a thread that is not a daemon needs an event as 'stop'")
    _require_tuple(args)

    def wait() -> None:
        if stop is None:
            event.wait()
        else:
            while not stop.is_set() and not event.wait(check_stop_interval_s):
                pass
            if stop.is_set():
                return
        func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Calls a function with each of several lists of arguments, in threads.

    Args:
      fn: the function.
      args_list: what it is called with, once for each.
      block_until_all_done: whether to wait for the results.
      max_concurrent_executions: so many calls run at a time.

    Returns:
      What the function has returned, by the place of its arguments in `args_list`; None if it does
      not wait.

    Raises:
      Exception: the first that a call has raised.
    """
    if not args_list:
        return {} if block_until_all_done else None
    pool = ThreadPoolExecutor(min(max_concurrent_executions, len(args_list)))
    calls = [pool.submit(fn, *arguments) for arguments in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {i: call.result() for i, call in enumerate(calls)} if block_until_all_done else None


def _require_tuple(args: Any) -> None:
    if not isinstance(args, tuple):
        raise InvalidArgumentError(
            f"args is of type {type(args).__name__}; it must be a tuple, such as (value,)"
        )
