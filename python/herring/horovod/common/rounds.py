"""What `join` means for the other ranks, and how a rank that has joined takes part in rounds."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar

from herring.errors import HerringError, InvalidArgumentError

_Result = TypeVar("_Result")


class Reducer(Protocol):
    """An object that averages gradients in planned rounds."""

    contributors: int  # Ranks that contributed to the last round.

    def shadow(self) -> None:
        """Takes part in a round without contributing."""


class Series(Protocol):
    """An object that contributes gradients to rounds that do not wait for all ranks."""

    name: str

    @property
    def open(self) -> bool:
        """Whether rounds are under way."""


reducers: weakref.WeakSet[Reducer] = weakref.WeakSet()  # All reducers of this process.
partial: weakref.WeakSet[Series] = weakref.WeakSet()


_as_zeros = True


def count_joined(as_zeros: bool) -> None:
    """Says what `joined_as_zeros` returns; it must be the same on all ranks."""
    global _as_zeros
    _as_zeros = as_zeros


def joined_as_zeros() -> bool:
    """Returns whether averages count ranks that have joined, with zeros, as Horovod's do."""
    return _as_zeros


def _shadow(reducer: Reducer) -> None:
    """Takes part in rounds without contributing, until no rank contributes to a round."""
    try:
        while True:
            reducer.shadow()
            if reducer.contributors == 0:
                return
    except HerringError:
        return  # The ranks that train raise this error, and so does join().


def without_this_rank(join: Callable[[], _Result]) -> _Result:
    """Calls `join` while this rank takes part in the others' rounds without contributing.

    A planned round needs all ranks. So each reducer gets a thread here that begins rounds without
    contributing to them. When no rank contributes to a round, all ranks have joined.

    Raises:
      InvalidArgumentError: An optimizer with a partial `sync` has not been flushed.
    """
    gc.collect()  # Removes unused optimizers, which would wait here for ranks that freed theirs.
    for one in partial:
        if one.open:
            raise InvalidArgumentError(
                f"join() while {one.name} makes partial rounds, which do not need equal numbers of "
                "steps: call optimizer.flush() on a rank that has no more data"
            )
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
