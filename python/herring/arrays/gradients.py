"""Lists of gradients that are averaged round after round, for adapters of frameworks.

A framework's adapter hands over host arrays and gets host arrays; what is here knows no framework.
A round is one planned operation (`herring.PlannedReduction`): nothing is negotiated in it, and
gradients may be put in from any thread in any order, on each rank in another.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring import _core
from herring.arrays.agreement import job_ranks, ranks_text, require_agreement
from herring.arrays.collectives import allgather_object
from herring.arrays.groups import Group, scope_of
from herring.arrays.planned import PlannedReduction
from herring.arrays.runtime import is_initialized, job, require_running
from herring.errors import HerringError, InvalidArgumentError

__all__ = ["Averager", "GradientRounds", "Source", "agree", "check_operator", "fresh"]

# How the plan sees a dtype of a framework: its elements, and how many of them an element is.
_PLANNED = {
    "float16": ("float16", 1),
    "bfloat16": ("bfloat16", 1),
    "float32": ("float32", 1),
    "float64": ("float64", 1),
    "complex64": ("float32", 2),
    "complex128": ("float64", 2),
}

# What a rank says in its byte of a round's note.
_WELL, _MORE, _GIVEN_UP = 0, 1, 2
_TOLD: dict[int, tuple[type[HerringError], str]] = {
    _MORE: (
        InvalidArgumentError,
        "has a gradient for a variable that had none on any rank in the first step; use all of "
        "them in the first step, or wrap the optimizer again where variables are unfrozen",
    ),
    _GIVEN_UP: (
        HerringError,
        "gave up its step before all gradients were there; the error on that rank says why",
    ),
}


class Source(NamedTuple):
    """What a gradient is with respect to.

    Attributes:
      name: for messages.
      shape: of the gradient.
      dtype: its name, for instance "float32".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Of the gradient, in the dtype that it is planned with."""
        return math.prod(self.shape) * _PLANNED[self.dtype][1]


def check_operator(op: str) -> None:
    """Raises InvalidArgumentError unless gradients are reduced by it."""
    if op not in ("average", "sum"):
        raise InvalidArgumentError(f"op must be 'average' or 'sum', not {op!r}")


def fresh(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """A new array, content undefined, that starts at a multiple of 64 bytes.

    Frameworks adopt such memory where they would copy other.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + nbytes].view(dtype).reshape(tuple(shape))


def _raw(array: Any) -> Any:
    """An array as the core takes it: one of NumPy's as bytes, others by DLPack as they are."""
    if not isinstance(array, np.ndarray):
        return array
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def agree(
    sources: Sequence[Source],
    present: Sequence[int],
    *,
    name: str,
    group: Group | None = None,
    order: Sequence[int] = (),
) -> list[int]:
    """Compares the lists of all ranks, and hands the first rank's order to all (collective).

    Args:
      sources: one per variable, in an order that is the same on all ranks.
      present: places in `sources` of those that have a gradient on this rank.
      name: the same on all ranks, different for each list.
      group: those who take part; None: all ranks.
      order: places in `sources` in the order in which this rank produces the gradients, as far as
        its framework shows it. What the first rank says counts; others may say anything.

    Returns:
      Places in `sources` of those that have a gradient on some rank, in the order of the first
      rank. Those that it did not mention come last, in reverse order of the list: frameworks list
      variables from the first layer to the last, and gradients come the other way.

    Raises:
      MismatchError: shapes or dtypes differ between ranks; names the first difference.
    """
    require_agreement(
        [f"{source.dtype} {list(source.shape)}" for source in sources],
        labels=[source.name for source in sources],
        what="variable",
        name=name,
        group=group,
    )
    mine = sorted(present), list(order)
    everyone = allgather_object(mine, name=f"{name}.gradients", group=group)
    used = {index for indices, _ in everyone for index in indices}
    first = [index for index in dict.fromkeys(everyone[0][1]) if index in used]
    return first + sorted(used.difference(first), reverse=True)


class GradientRounds:
    """Averages the gradients of a list of variables over all ranks, round by round.

    Which variables take part is agreed upon once: those that have a gradient on some rank. Where a
    rank has none for one of them it contributes zeros, and gets the average. Those without one on
    every rank have no place in the plan.

    What happens to a rank is told to all in the round's note, which has a byte for each rank: that
    it has gradients which have no place, or that it gave its step up in the middle. All ranks then
    raise the same error, and stay in step.

    Attributes:
      sources: as given.
      used: places in `sources` of those that take part, ascending.
      order: the same places in the order of the plan: as the first rank has produced the gradients
        when the list was first seen. They travel in this order.
      contributors: ranks whose gradients are in the last round's averages.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        present: Sequence[int],
        *,
        name: str,
        op: str = "average",
        wire_dtype: str | None = None,
        buffer_bytes: int = 0,
        group: Group | None = None,
        order: Sequence[int] = (),
    ) -> None:
        """Compares the lists of all ranks and plans (collective).

        Args:
          sources: one per variable, in an order that is the same on all ranks.
          present: places in `sources` of those that have a gradient on this rank.
          name: the same on all ranks, different for each list.
          op: "average" or "sum".
          wire_dtype: "float16" or "bfloat16": float32 gradients travel between nodes in it.
          buffer_bytes: size of a fusion buffer; 0: chosen by the plan.
          group: those who take part; None: all ranks.
          order: as of `agree`.

        Raises:
          InvalidArgumentError: an operator or dtype that is not for gradients.
          MismatchError: the lists differ between ranks; names the first difference.
        """
        check_operator(op)
        for source in sources:
            if source.dtype not in _PLANNED:
                raise InvalidArgumentError(
                    f"{name}: the gradient of {source.name!r} is {source.dtype}; gradients are "
                    + ", ".join(_PLANNED)
                )
        self.name = name
        self.sources = list(sources)
        self.contributors = 0
        self._group = group
        self._scope = scope_of(group)
        self.order = agree(sources, present, name=name, group=group, order=order)
        self.used = sorted(self.order)
        in_order = [self.sources[i] for i in self.order]
        self._plan = PlannedReduction(
            [(source.elements, _PLANNED[source.dtype][0]) for source in in_order],
            name=name,
            op=op,
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
            group=group,
            note_bytes=self._scope.size,
        )
        arenas = [self._plan.arena(i) for i in range(len(self._plan.arenas))]
        self._places = {
            index: arenas[arena][offset : offset + nbytes]
            for index, (arena, offset, nbytes) in zip(self.order, self._plan.placements)
        }
        self._entry = {index: entry for entry, index in enumerate(self.order)}
        self._lock = threading.Lock()
        self._open = False
        self._missing: set[int] = set()
        self._report = _WELL

    def put(self, indices: Sequence[int], arrays: Sequence[Any]) -> None:
        """Puts gradients of this round in their places; the first call of a round begins it.

        Args:
          indices: places in `sources`.
          arrays: C-contiguous host arrays with the gradients, in the same order.

        Raises:
          HerringError: one of them was put in this round before: the step before was interrupted
            between its first gradient and its end. All ranks raise it.
        """
        with self._lock:
            if not self._open:
                self._begin()
            elif not self._missing.issuperset(i for i in indices if i in self._entry):
                self._report = _GIVEN_UP
                self._end()
            placed = {i: array for i, array in zip(indices, arrays) if i in self._entry}
            if len(placed) < len(indices):
                self._report = _MORE
            self._missing.difference_update(placed)
        _core.copy_parts(self._parts(placed.items()))
        self._plan.ready_all([self._entry[index] for index in placed])

    def finish(self, dtypes: Sequence[Any]) -> list[np.ndarray]:
        """Ends the round: gradients that were not put in are zeros; waits for the averages.

        Args:
          dtypes: NumPy dtype of each result.

        Returns:
          For each of `used` a new array, aligned to 64 bytes.

        Raises:
          InvalidArgumentError: some rank has a gradient that no rank had at first.
          HerringError: some rank has given up the step.
          PeerLostError, TimeoutError: the round failed.
        """
        self._complete()
        results = [
            fresh(self.sources[index].shape, dtype) for index, dtype in zip(self.used, dtypes)
        ]
        self._take(results)
        return results

    def finish_into(self, arrays: Sequence[Any]) -> None:
        """As `finish`; the averages go into `arrays`, one for each of `used`, writable."""
        self._complete()
        self._take(arrays)

    def average(self, indices: Sequence[int], arrays: Sequence[Any]) -> list[np.ndarray]:
        """A whole round: `put` and `finish` in one; results have the dtypes of the sources."""
        found = {index: np.asarray(array).dtype for index, array in zip(indices, arrays)}
        self.put(indices, arrays)
        return self.finish([found.get(i, self.sources[i].dtype) for i in self.used])

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has run out of data."""
        self._plan.begin(active=False)
        self._plan.wait()
        self.contributors = self._plan.contributors

    def _begin(self) -> None:
        self._plan.begin()
        self._missing = set(self.used)
        self._report = _WELL
        self._open = True

    def _complete(self) -> None:
        with self._lock:
            if not self._open:
                self._begin()
            self._end()

    def _end(self) -> None:
        for index in self._missing:
            self._places[index][:] = 0
        note = bytearray(self._scope.size)
        note[self._scope.rank] = self._report
        self._open = False
        self._plan.note(note)
        self._plan.ready_all([self._entry[index] for index in self._missing])
        self._plan.wait()
        self.contributors = self._plan.contributors
        notes = self._plan.notes
        for code, (kind, text) in _TOLD.items():
            places = (place for place, told in enumerate(notes) if told == code)
            if ranks := job_ranks(places, self._group):
                raise kind(f"{self.name}: {ranks_text(ranks)} {text}")

    def _take(self, arrays: Sequence[Any]) -> None:
        _core.copy_parts(self._parts(zip(self.used, arrays)), back=True)

    def _parts(self, arrays: Iterable[tuple[int, Any]]) -> list[tuple[Any, ...]]:
        places = self._places
        return [(places[i], 0, _raw(array), 0, places[i].nbytes) for i, array in arrays]


class Averager:
    """What adapters have in common that average the lists of gradients an optimizer gets.

    A list of variables is planned when it is first seen.

    Args:
      name: of its operations; the same on all ranks, different for each averager.
      op: "average" or "sum".
      wire_dtype: as of `GradientRounds`.
      buffer_bytes: as of `GradientRounds`.
      group: those who take part; None: all ranks.

    Raises:
      InvalidArgumentError: another `op`.
      ShutdownError: there is no job.
    """

    def __init__(
        self, name: str, *, op: str, wire_dtype: str | None, buffer_bytes: int, group: Group | None
    ) -> None:
        check_operator(op)
        self.name = name
        self._size = scope_of(group).size
        self._job = job()
        self._options: dict[str, Any] = {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "group": group,
        }
        self._rounds: dict[Hashable, Any] = {}

    def _is_alone(self) -> bool:
        """Whether there is nobody to average with.

        Raises:
          ShutdownError: the job in which this was made has ended.
        """
        if self._size > 1 or is_initialized():  # after a job of one there is nothing to average
            require_running(self._job, self.name)
        return self._size == 1

    def _rounds_of(self, key: Hashable, plan: Callable[[str], Any]) -> Any:
        """What `plan` has made of a name for the list that `key` tells from others."""
        if key not in self._rounds:
            self._rounds[key] = plan(f"{self.name}.{len(self._rounds)}")
        return self._rounds[key]
