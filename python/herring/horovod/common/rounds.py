"""Rounds of `DistributedOptimizer` of which a rank that has joined is to be a part."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from herring.errors import HerringError

__all__ = ["reducers", "without_this_rank"]

_Result = TypeVar("_Result")


class Reducer(Protocol):
    """What averages gradients in planned rounds."""

    contributors: int  # of the last round

    def shadow(self) -> None:
        """Takes part in a round without contributing."""


reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()  # those of this process


def _shadow(reducer: Reducer) -> None:
    """Takes part in rounds without contributing, up to one to which nobody contributes."""
    try:
        while True:
            reducer.shadow()
            if reducer.contributors == 0:
                return
    except HerringError:
        return  # the ranks that train are told, and so is join()


def without_this_rank(join: Callable[[], _Result]) -> _Result:
    """Calls `join`, while this rank has no part in the others' rounds.

    A planned round needs all ranks. So each reducer has a thread that begins rounds to which this
    rank has nothing to add. In the one that all ranks begin like that everybody has joined.

    Args:
      join: returns when all ranks have joined.

    Returns:
      What it returns.
    """
    gc.collect()  # an optimizer that is gone on another rank must not wait for that rank here
    threads = [
        threading.Thread(target=_shadow, args=(reducer,), name="herring-join", daemon=True)
        for reducer in list(reducers)
    ]
    for thread in threads:
        thread.start()
    found = join()
    for thread in threads:
        thread.join()
    return found
