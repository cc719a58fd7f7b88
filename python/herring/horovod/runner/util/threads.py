"""Runs functions in threads of their own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from herring.errors import InvalidArgumentError


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Starts a function in a new thread.

    Args:
      target: the function.
      args: the function's arguments.
      name: name of the thread.
      daemon: whether the process may end before the function returns.
      silent: whether exceptions of the function are ignored instead of printed.

    Returns:
      The running thread.

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
    """Starts a thread that calls a function once an event is set.

    Args:
      event: the event to wait for.
      func: the function.
      args: the function's arguments.
      stop: an event that ends the wait; if it is set first, the function is not called.
      check_stop_interval_s: seconds between two checks of `stop`.
      daemon: whether the process may end before the thread does; False needs `stop`.
      silent: whether exceptions of the function are ignored instead of printed.

    Returns:
      The running thread.

    Raises:
      InvalidArgumentError: `event` is None, `stop` is missing although `daemon` is False, or `args`
        is not a tuple.
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
    """Calls a function with several lists of arguments, in parallel threads.

    Args:
      fn: the function.
      args_list: the lists of arguments, one for each call.
      block_until_all_done: whether to wait for the results.
      max_concurrent_executions: the largest number of calls that run at the same time.

    Returns:
      A dictionary from the index in `args_list` to the function's result; None without waiting.

    Raises:
      Exception: the exception of the first list in `args_list` for which the function raised one.
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
