"""Averages lists of gradients round after round, for the adapters of frameworks.

An adapter passes host arrays in and gets host arrays back; this module knows no framework. A round
is one planned operation (`herring.PlannedReduction`), so nothing is negotiated in it. Gradients may
be put in from any thread and in any order, and each rank may use another order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring import _core
from herring.arrays.agreement import job_ranks, require_agreement
from herring.arrays.arguments import Operator
from herring.arrays.calls import name_of_next
from herring.arrays.groups import Group, scope_of
from herring.arrays.objects import allgather_plain
from herring.arrays.planned import PlannedReduction
from herring.arrays.runtime import is_elastic, is_initialized, is_running, job, require_running
from herring.arrays.wire import WireDType
from herring.base.units import ranks_text
from herring.errors import HerringError, InvalidArgumentError

# For each dtype of a framework: the dtype in the plan, and how many of its elements make one value.
_PLANNED = {
    "float16": ("float16", 1),
    "bfloat16": ("bfloat16", 1),
    "float32": ("float32", 1),
    "float64": ("float64", 1),
    "complex64": ("float32", 2),
    "complex128": ("float64", 2),
}

# The values of a rank's byte in a round's note (the bytes that travel with the round's gradients).
_WELL, _MORE, _GIVEN_UP = 0, 1, 2
_TOLD: dict[int, tuple[type[HerringError], str]] = {
    _MORE: (
        InvalidArgumentError,
        "has a gradient for a variable that had none on any rank in the first step; use every "
        "variable in the first step, or wrap the optimizer again after unfreezing variables",
    ),
    _GIVEN_UP: (
        HerringError,
        "gave up its step before all gradients were ready; the error on that rank says why",
    ),
}


class Source(NamedTuple):
    """A variable whose gradient is averaged."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """The number of the gradient's elements in the dtype that the plan uses for it."""
        return math.prod(self.shape) * _PLANNED[self.dtype][1]


def check_operator(op: Operator) -> None:
    """Raises InvalidArgumentError unless gradients can be reduced with `op`."""
    if op not in ("average", "sum"):
        raise InvalidArgumentError(f"op must be 'average' or 'sum', not {op!r}")


def require_sources(sources: Sequence[Source], name: str) -> None:
    """Raises InvalidArgumentError if the gradient of a variable cannot be averaged."""
    for source in sources:
        if source.dtype not in _PLANNED:
            raise InvalidArgumentError(
                f"{name}: the gradient of {source.name!r} is {source.dtype}; gradients are "
                + ", ".join(_PLANNED)
            )


def fresh(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Returns a new array, with undefined content, that starts at a multiple of 64 bytes.

    Frameworks adopt aligned memory and copy other memory.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + 64, np.uint8)
    first = -raw.ctypes.data % 64
    return raw[first : first + nbytes].view(dtype).reshape(tuple(shape))


def _raw(array: Any) -> Any:
    """Returns an array in a form that the core takes: a NumPy array as bytes, others unchanged."""
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
    options: str = "",
) -> list[int]:
    """Compares the lists of all ranks, and hands the first rank's order to all (collective).

    Args:
      sources: One source per variable, in an order that is the same on all ranks.
      present: Indices into `sources` of the variables that have a gradient on this rank.
      name: Identifies the list; the same on all ranks, different for each list.
      order: Indices into `sources` in the order in which this rank produces the gradients, as far
        as its framework shows the order. Only the first rank's order counts.
      options: What else must be the same on all ranks, in words.

    Returns:
      Indices into `sources` of the variables that have a gradient on some rank, in the first rank's
      order. Variables that the first rank's order lacks come last, in reverse order of the list:
      frameworks list variables from the first layer to the last, and produce gradients in reverse.

    Raises:
      MismatchError: Shapes or dtypes differ between ranks; the message names the first difference.
    """
    require_agreement(
        [options] * bool(options) + [f"{source.dtype} {list(source.shape)}" for source in sources],
        labels=["the options"] * bool(options) + [source.name for source in sources],
        what="variable",
        name=name,
        group=group,
    )
    mine = sorted(map(int, present)), list(map(int, order))
    everyone = allgather_plain(mine, name=f"{name}.gradients", group=group)
    used = {index for indices, _ in everyone for index in indices}
    first = [index for index in dict.fromkeys(everyone[0][1]) if index in used]
    return first + sorted(used.difference(first), reverse=True)


class PlannedList(PlannedReduction):
    """A planned reduction of some gradients of a list, each known by its place in the list.

    All adapters that average lists in planned rounds stand on it.

    Args:
      sizes: The number of elements and the dtype name of each gradient of the list.
      order: The places of the gradients that take part, in the order of the plan.
    """

    def __init__(
        self, sizes: Sequence[tuple[int, str]], order: Iterable[int], **options: Any
    ) -> None:
        self._entries = {place: entry for entry, place in enumerate(order)}
        super().__init__([sizes[place] for place in self._entries], **options)

    def __contains__(self, place: int) -> bool:
        return place in self._entries

    def cut(self, arenas: Sequence[Any]) -> dict[int, Any]:
        """Returns each gradient's part of the arenas, which are given as bytes."""
        return {
            place: arenas[arena][offset : offset + nbytes]
            for place, (arena, offset, nbytes) in zip(self._entries, self.placements)
        }

    def residuals(self) -> dict[int, np.ndarray]:
        """Returns what rounding has lost of each gradient, one float32 for each of its elements."""
        return self._by_place([self.residual(i) for i in range(len(self.arenas))])

    def set_residuals(self, values: Mapping[int, np.ndarray]) -> None:
        """Replaces the residuals of these gradients, and sets those of the others to 0."""
        arrays = [np.zeros_like(self.residual(i)) for i in range(len(self.arenas))]
        for place, part in self._by_place(arrays).items():
            if place in values:
                part[:] = values[place]
        for index, array in enumerate(arrays):
            self.set_residual(index, array)

    def take_back(self) -> None:
        """Keeps what the latest round has sent of `TopK`, because its averages are not used."""
        self._open.take_back()

    def _by_place(self, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
        sizes = [nbytes // max(array.size, 1) for (_, nbytes), array in zip(self.arenas, arrays)]
        return {
            place: arrays[arena][offset // sizes[arena] : (offset + nbytes) // sizes[arena]]
            for place, (arena, offset, nbytes) in zip(self._entries, self.placements)
        }

    def filled(self, places: Iterable[int]) -> None:
        """Says that the gradients at these places of the list are in the arenas."""
        self.ready_all([self._entries[place] for place in places])


class GradientRounds:
    """Averages the gradients of a list of variables over all ranks, round by round.

    Ranks agree once on the variables that take part: those that have a gradient on some rank. A
    rank without a gradient for such a variable contributes zeros and gets the average. A variable
    without a gradient on every rank has no place in the plan.

    The round's note has a byte for each rank. In its byte a rank says that it has gradients without
    a place in the plan, or that it gave up its step before the end. All ranks then raise the same
    error and stay in step.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        present: Sequence[int],
        *,
        name: str,
        op: Operator = "average",
        wire_dtype: WireDType | None = None,
        buffer_bytes: int = 0,
        group: Group | None = None,
        order: Sequence[int] = (),
        divide_by_all: bool = False,
    ) -> None:
        """Compares the lists of all ranks and makes the plan (collective).

        Args:
          sources: One source per variable, in an order that is the same on all ranks.
          present: Indices into `sources` of the variables that have a gradient on this rank.
          name: Identifies the list; the same on all ranks, different for each list.
          wire_dtype: As in `PlannedReduction`.
          order: Indices into `sources` in the order in which this rank produces the gradients.
          divide_by_all: Whether averages divide by the number of all ranks, also in rounds to which
            some do not contribute.

        Raises:
          MismatchError: The lists differ between ranks; the message names the first difference.
        """
        check_operator(op)
        require_sources(sources, name)
        self.name = name
        self.sources = list(sources)
        # The number of ranks whose gradients are in the last round's averages.
        self.contributors = 0
        self._group = group
        self._scope = scope_of(group)
        # The same indices in the order of the plan, in which the gradients travel. It is the order
        # in which the first rank produced the gradients when the list was first seen.
        self.order = agree(sources, present, name=name, group=group, order=order)
        # Indices into `sources` of the variables that take part, ascending.
        self.used = sorted(self.order)
        self._plan = PlannedList(
            [(source.elements, _PLANNED[source.dtype][0]) for source in self.sources],
            self.order,
            name=name,
            op=op,
            wire_dtype=wire_dtype,
            buffer_bytes=buffer_bytes,
            group=group,
            note_bytes=self._scope.size,
            divide_by_all=divide_by_all,
        )
        self._places = self._plan.cut([self._plan.arena(i) for i in range(len(self._plan.arenas))])
        self._lock = threading.Lock()
        self._open = False
        self._missing: set[int] = set()
        self._report = _WELL

    def put(self, indices: Sequence[int], arrays: Sequence[Any]) -> None:
        """Puts gradients of this round in their places; the first call of a round begins it.

        Args:
          arrays: C-contiguous host arrays with the gradients, in the order of `indices`.

        Raises:
          HerringError: A gradient was already put in this round, so the step before was interrupted
            between its first gradient and its end. All ranks raise it.
        """
        with self._lock:
            if not self._open:
                self._begin()
            elif not self._missing.issuperset(i for i in indices if i in self._plan):
                self._report = _GIVEN_UP
                self._end()
            placed = {i: array for i, array in zip(indices, arrays) if i in self._plan}
            if len(placed) < len(indices):
                self._report = _MORE
            self._missing.difference_update(placed)
        _core.copy_parts(self._parts(placed.items()))
        self._plan.filled(placed)

    def finish(self, dtypes: Sequence[Any]) -> list[np.ndarray]:
        """Waits for the averages, new arrays aligned to 64 bytes; what was not put in is zeros."""
        self._complete()
        results = [
            fresh(self.sources[index].shape, dtype) for index, dtype in zip(self.used, dtypes)
        ]
        self._take(results)
        return results

    def finish_into(self, arrays: Sequence[Any]) -> None:
        """Ends the round as `finish` does, and writes the averages to `arrays`."""
        self._complete()
        self._take(arrays)

    def average(self, indices: Sequence[int], arrays: Sequence[Any]) -> list[np.ndarray]:
        """Does a whole round, `put` and `finish`; results have the dtypes of the given arrays."""
        found = {index: np.asarray(array).dtype for index, array in zip(indices, arrays)}
        self.put(indices, arrays)
        return self.finish([found.get(i, self.sources[i].dtype) for i in self.used])

    def shadow(self) -> None:
        """Takes part in a round without contributing, for a rank that has no more data."""
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
        self._plan.note(bytes(note))
        self._plan.filled(self._missing)
        self._plan.wait()
        self.contributors = self._plan.contributors
        notes = self._plan.notes
        for code, (kind, text) in _TOLD.items():
            places = (place for place, told in enumerate(notes) if told == code)
            if ranks := job_ranks(places, self._group):
                self._plan.take_back()
                raise kind(f"{self.name}: {ranks_text(ranks)} {text}")

    def _take(self, arrays: Sequence[Any]) -> None:
        _core.copy_parts(self._parts(zip(self.used, arrays)), back=True)

    def _parts(self, arrays: Iterable[tuple[int, Any]]) -> list[tuple[Any, ...]]:
        places = self._places
        return [(places[i], 0, _raw(array), 0, places[i].nbytes) for i, array in arrays]


class Averager:
    """The common base of adapters that average the lists of gradients given to an optimizer.

    A list of variables is planned when it is first seen. In an elastic job an averager of all ranks
    outlives the generation in which it was made: it plans its lists anew in the next one.

    Args:
      name: The prefix of its operations' names; the same on all ranks, different for each averager.
      numbered: Whether `name` is a kind, of which averagers are numbered: as they are made, or as
        they are first used in a generation of an elastic job, because a worker that has come may
        have made other ones.
      wire_dtype: As in `PlannedReduction`.
      divide_by_all: Whether averages divide by the number of all ranks, also in rounds to which
        some do not contribute.
    """

    _may_follow = True

    def __init__(
        self,
        name: str,
        *,
        op: Operator,
        wire_dtype: WireDType | None,
        buffer_bytes: int,
        group: Group | None,
        divide_by_all: bool = False,
        numbered: bool = False,
    ) -> None:
        check_operator(op)
        # Whether it goes on in the next generation of an elastic job.
        self.follows = self._may_follow and group is None and is_elastic()
        self._kind = name if numbered else ""
        self.name = name
        self._size = scope_of(group).size
        self._job: Any = None  # in which `name` and `_size` are right
        if not self.follows:
            self.name = name_of_next(name, group) if numbered else name
            self._job = job()
        self._options: dict[str, Any] = {
            "op": op,
            "wire_dtype": wire_dtype,
            "buffer_bytes": buffer_bytes,
            "group": group,
            "divide_by_all": divide_by_all,
        }
        self._rounds: dict[Hashable, Any] = {}

    def _is_alone(self) -> bool:
        """Returns whether there is no other rank to average with."""
        if self.follows:
            self._enter()
        elif self._size > 1 or is_initialized():  # a lone worker may go on after its job
            require_running(self._job, self.name)
        return self._size == 1

    def _enter(self) -> None:
        """Begins anew in the present generation, unless it is in there."""
        if self._job is not None:
            ended = self._size == 1 and not is_initialized()  # a lone worker may go on then
            if ended or is_running(self._job):
                return
        present = job()
        self._rounds = {}
        self._size = present.size
        if self._kind:
            self.name = name_of_next(self._kind, None)
        self._job = present

    def _rounds_of(self, key: Hashable, plan: Callable[[str], Any]) -> Any:
        """Returns the rounds of the list that `key` identifies; `plan` makes them from a name."""
        if key not in self._rounds:
            self._rounds[key] = plan(f"{self.name}.{len(self._rounds)}")
        return self._rounds[key]
