"""Grouped collectives: a list of arrays as one operation, done for all of them or for none.

Arrays of the list may have any mix of shapes and dtypes. They are put together in staging memory
(`herring.empty`), and results are copied back only when everything is complete: what that costs is
as much memory again as the arrays have, and one more copy on the way in and on the way out. In
return there is one announcement per dtype (for gathers and broadcasts one in all) however many
arrays there are, and none of them is touched by an operation that fails, on any rank. But when a
worker dies or leaves in the middle, ranks that had everything by then have changed theirs.

Lists must agree on all ranks: the number of arrays, their order, shapes and dtypes. Ranks with
another list are named by `MismatchError` on every rank, without one more round trip.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from herring import _core
from herring.collectives import (
    Handle,
    allgather,
    called,
    empty,
    name_of_next,
    note_write,
    submit,
)
from herring.errors import (
    HerringError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ShutdownError,
)
from herring.groups import Group, scope_of
from herring.handles import call_later
from herring.runtime import job

__all__ = [
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_broadcast",
    "grouped_reduce_scatter",
]

_FLOATS = ("float32", "float64", "float16", "bfloat16")
_DTYPES = 10  # that there are: a list has no more operations
_SHOWN = 12  # arrays of a list in a message


def _numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)  # NumPy has none: its bits


class _Array(NamedTuple):
    dtype: str
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Of one index of the first dimension."""
        count = int(np.prod(self.shape[1:], dtype=np.int64))
        return count * _numpy_dtype(self.dtype).itemsize

    @property
    def bytes(self) -> int:
        return (self.shape[0] if self.shape else 1) * self.row_bytes


# Staging, first byte there, array, first byte there, bytes.
_Part = tuple[np.ndarray, int, Any, int, int]


class _Listed:
    """The arrays of a call, each looked at once.

    Raises:
      InvalidArgumentError: no list, or something in it is no array that the call takes.
    """

    def __init__(self, kind: str, arrays: Any, *, writable: bool, rows: bool) -> None:
        if hasattr(arrays, "shape"):
            raise InvalidArgumentError(f"{kind} takes a list of arrays, not one array")
        self.arrays = list(arrays)
        self.about: list[_Array] = []
        for index, array in enumerate(self.arrays):
            try:
                one = _Array(*_core.describe_array(array, writable))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{kind}, array {index} of the list: {error}") from None
            if rows and not one.shape:
                raise InvalidArgumentError(
                    f"{kind}, array {index} of the list: it needs at least one dimension"
                )
            self.about.append(one)
        self.digest = hashlib.blake2b(repr(self.about).encode(), digest_size=16).digest()

    @property
    def number(self) -> int:
        """What ranks with the same list agree about: 1 to 2**31 - 1."""
        return int.from_bytes(self.digest[:4], "little") & 0x7FFFFFFF or 1

    def __str__(self) -> str:
        return _text_of(self.about)

    def dtypes(self) -> dict[str, list[int]]:
        """The places in the list of the arrays of each dtype."""
        found: dict[str, list[int]] = {}
        for index, one in enumerate(self.about):
            found.setdefault(one.dtype, []).append(index)
        return found or {"float32": []}  # the ranks meet all the same


def _text_of(about: Sequence[_Array]) -> str:
    shown = ", ".join(f"{one.dtype} {list(one.shape)}" for one in about[:_SHOWN])
    more = ", ..." if len(about) > _SHOWN else ""
    plural = "" if len(about) == 1 else "s"
    return f"{len(about)} array{plural}{': ' if about else ''}{shown}{more}"


def _typed(staging: np.ndarray, dtype: str) -> Any:
    """The staging as an array of a dtype that NumPy may not have."""
    if dtype != "bfloat16":
        return staging
    try:
        import torch
    except ImportError:
        raise InvalidArgumentError("a list with bfloat16 arrays needs PyTorch") from None
    return torch.from_numpy(staging.view(np.int16)).view(torch.bfloat16)


class _Call:
    """The operations of a list: one per dtype, all of them known to the servers as one call.

    Args:
      kind: the collective, as the servers know it.
      name: of the call; its first operation has it, the others have a number behind it.
      group: those who take part; None: all ranks.
    """

    def __init__(self, kind: str, name: str, group: Group | None) -> None:
        self.kind = kind
        self.group = group
        self.names = [name, *(f"{name}.{index}" for index in range(1, _DTYPES))]
        self.scope = scope_of(group)
        self.operations: list[_core.Operation] = []
        self._known = 0  # names that the servers know of

    def start(self, array: Any, timeout: float | None, **options: Any) -> None:
        """Starts the next operation."""
        name = self.names[self._known]
        self._known += 1  # with an error too: submit() tells the others
        self.operations.append(
            submit(self.kind, array, name, timeout, self.group, **options),
        )

    def refuse(self, error: Exception) -> None:
        """Tells the others that this rank will not do what it has not started.

        A list of another rank may have more dtypes than this one's. As every rank does so after a
        failure, all of them have made the same calls, and may use the name again.
        """
        if isinstance(error, (PeerLostError, ShutdownError)):
            return  # nobody is left to tell
        known = isinstance(error, HerringError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        with contextlib.suppress(HerringError):
            for name in self.names[self._known :]:
                job().refuse(self.kind, name, why, self.scope.handle)
        self._known = _DTYPES

    def explain(self, error: Exception, listed: _Listed) -> Exception:
        """The error of an operation, in terms of the list."""
        if not isinstance(error, MismatchError):
            return error
        # What ranks agree about travels in a field that these operations do not use.
        text = re.sub(r", root (\d+)", lambda found: f", list #{int(found[1]):x}", str(error))
        rank = job().rank
        return MismatchError(f"{text}; rank {rank} has list #{listed.number:x}, {listed}")


class _GroupedHandle(Handle):
    """A grouped operation under way, for all arrays of its list."""

    def __init__(self, call: _Call, listed: _Listed, finish: Callable[[], Any]) -> None:
        super().__init__(call.operations[0], listed.arrays)
        self._call = call
        self._listed = listed
        self._take_results = finish
        self._lock = threading.Lock()
        self._finished = False
        self._result: Any = None
        self._error: Exception | None = None
        self._run: Callable[[], None] | None = None
        self._left = len(call.operations)

    def watch(self) -> None:
        """Sees to it that the results reach the arrays, also if nobody waits."""
        for operation in self._call.operations:
            if not call_later(operation, self._one_done):
                self._one_done()

    def done(self) -> bool:
        return self._finished

    def wait(self, timeout: float | None = None) -> Any:
        if timeout is not None and not timeout > 0:
            raise InvalidArgumentError(
                f"timeout is {timeout}; it must be more than 0 seconds, or None"
            )
        deadline = time.monotonic() + (timeout or 0)
        for operation in self._call.operations:
            try:
                left = 0.0 if timeout is None else max(deadline - time.monotonic(), 1e-6)
                operation.wait(left)
            except HerringError:
                if not operation.done():
                    raise
        self._finish()
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        return self._result

    def _finish(self) -> None:
        """Copies the results to where they belong, once, or notes why there are none."""
        with self._lock:
            if self._finished:
                return
            try:
                for operation in self._call.operations:
                    operation.wait()
                self._result = self._take_results()
            except Exception as error:
                self._call.refuse(error)
                self._error = self._call.explain(error, self._listed)
            self._take_results = _nothing  # staging goes
            self._finished = True

    def _one_done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left > 0:
                return
        self._finish()
        if self._run is not None:
            self._run()

    def _when_done(self, run: Callable[[], None]) -> bool:
        with self._lock:
            if self._finished:
                return False
            self._run = run
            return True


def _nothing() -> None:
    """What is left to do."""


def _check_scales(kind: str, listed: _Listed, op: str, prescale: float, postscale: float) -> None:
    """Finds before anything is started what an operation of one of the dtypes would refuse."""
    if op != "average" and prescale == postscale == 1.0:
        return
    for index, one in enumerate(listed.about):
        if one.dtype not in _FLOATS:
            raise InvalidArgumentError(
                f"{kind}, array {index} of the list: averages and scales are for floats, not "
                f"{one.dtype}"
            )


def _start_allreduce(
    arrays: Sequence[Any],
    op: str,
    name: str | None,
    prescale: float,
    postscale: float,
    timeout: float | None,
    group: Group | None,
    *,
    waits: bool,
) -> _GroupedHandle:
    kind = "grouped_allreduce"
    call = _Call("allreduce", name or name_of_next(kind, group), group)
    parts: list[_Part] = []
    try:
        listed = _Listed(kind, arrays, writable=True, rows=False)
        _check_scales(kind, listed, op, prescale, postscale)
        stagings = []
        for dtype, places in listed.dtypes().items():
            size, first = _numpy_dtype(dtype).itemsize, 0
            staging = empty(sum(listed.about[i].bytes for i in places) // size, _numpy_dtype(dtype))
            raw = staging.view(np.uint8)
            for i in places:
                parts.append((raw, first, listed.arrays[i], 0, listed.about[i].bytes))
                first += listed.about[i].bytes
            stagings.append(_typed(staging, dtype))
        _core.copy_parts(parts)
        for staging in stagings:
            call.start(
                staging,
                timeout,
                waits=waits,
                op=op,
                prescale=prescale,
                postscale=postscale,
                list=listed.number,
            )
    except Exception as error:
        call.refuse(error)
        raise

    def finish() -> list[Any]:
        _core.copy_parts(parts, back=True)
        for array in listed.arrays:
            note_write(array)
        return listed.arrays

    return _GroupedHandle(call, listed, finish)


def grouped_allreduce(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[Any]:
    """Reduces each array of a list over all ranks, in place: all of them, or none.

    Args:
      arrays: a list of arrays as `herring.allreduce` takes them, of any mix of shapes and dtypes;
        equal on all ranks. It may be empty.
      op: as `allreduce`, for all of them: "average" takes floats only.
      name: identifies the operation across ranks.
      prescale: multiplies every rank's values first (floats only).
      postscale: multiplies the results (floats only).
      timeout: seconds until the operation fails, as of `allreduce`.
      group: those who take part; None: all ranks.

    Returns:
      The arrays, as a list.

    Raises:
      InvalidArgumentError: as `allreduce`; names the array of the list.
      MismatchError: ranks disagree; the message says which have the same list as which.
      PeerLostError, TimeoutError: as `allreduce`. Whatever is raised, the arrays are as they were.
    """
    return _start_allreduce(
        arrays, op, name, prescale, postscale, timeout, group, waits=True
    ).wait()


def grouped_allreduce_async(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> Handle:
    """Starts a `grouped_allreduce`; the handle's `wait` returns the arrays, as a list.

    What the arrays hold now is what counts. The results are written to them at some time before
    `Handle.done` is true, by the thread for callbacks or a thread that waits.
    """
    handle = _start_allreduce(arrays, op, name, prescale, postscale, timeout, group, waits=False)
    handle.watch()
    return handle


def grouped_reduce_scatter(
    arrays: Sequence[Any],
    op: str = "average",
    *,
    name: str | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Reduces each array of a list over all ranks and leaves each rank a part of every array.

    Args:
      arrays: a list of arrays with at least one dimension, of any mix of shapes and dtypes; equal
        on all ranks. Not changed. It may be empty.
      op: as `grouped_allreduce`.
      name: identifies the operation across ranks.
      prescale: as `grouped_allreduce`.
      postscale: as `grouped_allreduce`.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array for each of the list, with this rank's rows of it: with N rows and P ranks the
      first ``N % P`` ranks get one row more than the others. bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """
    kind = "grouped_reduce_scatter"
    call = _Call("reduce_scatter", name or name_of_next(kind, group), group)
    size, rank = call.scope.size, call.scope.rank

    def rows_of(index: int, to: int) -> tuple[int, int]:  # the first, and how many
        rows = listed.about[index].shape[0]
        return to * (rows // size) + min(to, rows % size), rows // size + (to < rows % size)

    try:
        listed = _Listed(kind, arrays, writable=False, rows=True)
        _check_scales(kind, listed, op, prescale, postscale)
        parts: list[_Part] = []
        started = []
        for dtype, places in listed.dtypes().items():
            item, at = _numpy_dtype(dtype).itemsize, 0
            staging = empty(sum(listed.about[i].bytes for i in places) // item, _numpy_dtype(dtype))
            raw, splits = staging.view(np.uint8), []
            for to in range(size):  # the parts of one rank lie together
                begin = at
                for i in places:
                    row = listed.about[i].row_bytes
                    first, count = rows_of(i, to)
                    parts.append((raw, at, listed.arrays[i], first * row, count * row))
                    at += count * row
                splits.append((at - begin) // item)
            started.append((_typed(staging, dtype), splits))
        _core.copy_parts(parts)
        for staging, splits in started:
            call.start(
                staging,
                timeout,
                op=op,
                prescale=prescale,
                postscale=postscale,
                splits=splits,
                list=listed.number,
            )
    except Exception as error:
        call.refuse(error)
        raise

    def finish() -> list[np.ndarray]:
        found: dict[int, np.ndarray] = {}
        for operation, (dtype, places) in zip(call.operations, listed.dtypes().items()):
            flat, at = operation.result().view(_numpy_dtype(dtype)), 0
            for i in places:
                shape = (rows_of(i, rank)[1], *listed.about[i].shape[1:])
                count = int(np.prod(shape, dtype=np.int64))
                found[i] = flat[at : at + count].reshape(shape)
                at += count
        return [found[i] for i in range(len(listed.arrays))]

    return _GroupedHandle(call, listed, finish).wait()


_HEAD = 16  # bytes before what is said about a list: its length, and that of the data behind it


def _gather(
    kind: str,
    name: str | None,
    timeout: float | None,
    group: Group | None,
    look: Callable[[], tuple[_Listed, dict[str, Any], bool]],
) -> tuple[_Listed, str, list[tuple[dict[str, Any], np.ndarray]]]:
    """Gathers the lists of all ranks, each with what is said about it, as bytes.

    Args:
      kind: of the call, for its name.
      name: of the call, or None.
      timeout: seconds until it fails.
      group: those who take part; None: all ranks.
      look: returns the arrays, what to say about them, and whether their data is sent.

    Returns:
      The arrays, the name, and what each rank said and sent, in rank order.
    """
    name = name or name_of_next(kind, group)
    with called("allgather", name, group):
        listed, about, sends = look()
        head = json.dumps(about).encode()
        head += b" " * (-len(head) % 16)
        data = sum(one.bytes for one in listed.about) if sends else 0
        staging = empty(_HEAD + len(head) + data, np.uint8)
        staging[:_HEAD] = np.array([len(head), data], np.uint64).view(np.uint8)
        staging[_HEAD : _HEAD + len(head)] = np.frombuffer(head, np.uint8)
        if sends:
            parts, at = [], _HEAD + len(head)
            for array, one in zip(listed.arrays, listed.about):
                parts.append((staging, at, array, 0, one.bytes))
                at += one.bytes
            _core.copy_parts(parts)
    flat = allgather(staging, name=name, timeout=timeout, group=group)
    found, at = [], 0
    for _ in range(scope_of(group).size):
        said, sent = (int(n) for n in flat[at : at + _HEAD].copy().view(np.uint64))
        at += _HEAD
        about = json.loads(flat[at : at + said].tobytes())
        at += said
        found.append((about, flat[at : at + sent]))
        at += sent
    return listed, name, found


def _require_same(name: str, group: Group | None, keys: list[Any], texts: list[str]) -> None:
    """Raises MismatchError unless all ranks have the same key; it lists who has what."""
    if all(key == keys[0] for key in keys):
        return
    ranks = range(len(keys)) if group is None else group.ranks
    who: dict[str, list[str]] = {}
    for rank, text in zip(ranks, texts):
        who.setdefault(text, []).append(str(rank))
    listed = "; ".join(
        f"rank{'s' if len(those) > 1 else ''} {', '.join(those)}: {text}"
        for text, those in who.items()
    )
    of = "" if group is None else f" in group '{group.name}'"
    raise MismatchError(f"ranks disagree about '{name}'{of}: {listed}")


def grouped_allgather(
    arrays: Sequence[Any],
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[np.ndarray]:
    """Concatenates each array of a list over all ranks along its first dimension, in rank order.

    Args:
      arrays: a list of arrays with at least one dimension, which may differ between ranks; the
        other dimensions, the dtypes and the number of arrays may not. It may be empty.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      A new array for each of the list; bfloat16 comes as uint16 bits.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """

    def look() -> tuple[_Listed, dict[str, Any], bool]:
        listed = _Listed("grouped_allgather", arrays, writable=False, rows=True)
        return listed, {"list": listed.about}, True

    listed, name, found = _gather("grouped_allgather", name, timeout, group, look)
    lists = [[_Array(d, tuple(shape)) for d, shape in about["list"]] for about, _ in found]
    _require_same(
        name,
        group,
        [[(one.dtype, one.shape[1:]) for one in about] for about in lists],
        [_text_of(about) for about in lists],
    )
    pieces: list[list[np.ndarray]] = [[] for _ in listed.arrays]
    for about, (_, data) in zip(lists, found):
        at = 0
        for i, one in enumerate(about):
            piece = data[at : at + one.bytes].view(_numpy_dtype(one.dtype))
            pieces[i].append(piece.reshape(one.shape))
            at += one.bytes
    return [np.concatenate(those) for those in pieces]


def grouped_broadcast(
    arrays: Sequence[Any],
    root: int = 0,
    *,
    name: str | None = None,
    timeout: float | None = None,
    group: Group | None = None,
) -> list[Any]:
    """Copies each array of the root's list into that of every rank, in place: all, or none.

    Args:
      arrays: a list of arrays, of any mix of shapes and dtypes; equal on all ranks. Writable, on
        the root too. It may be empty.
      root: a rank, inside the group if there is one; equal on all ranks.
      name: identifies the operation across ranks.
      timeout: seconds until the operation fails.
      group: those who take part; None: all ranks.

    Returns:
      The arrays, as a list.

    Raises:
      InvalidArgumentError, MismatchError, PeerLostError, TimeoutError: as `grouped_allreduce`.
    """
    scope = scope_of(group)

    def look() -> tuple[_Listed, dict[str, Any], bool]:
        if not 0 <= root < scope.size:
            raise InvalidArgumentError(
                f"grouped_broadcast: root is {root}; ranks are 0 to {scope.size - 1}"
            )
        listed = _Listed("grouped_broadcast", arrays, writable=True, rows=False)
        about = {"list": listed.digest.hex(), "text": str(listed), "root": root}
        return listed, about, scope.rank == root

    listed, name, found = _gather("grouped_broadcast", name, timeout, group, look)
    about = [said for said, _ in found]
    _require_same(
        name,
        group,
        [(said["list"], said["root"]) for said in about],
        [f"list #{said['list'][:8]}, {said['text']}, root {said['root']}" for said in about],
    )
    if scope.rank != root:
        parts, at = [], 0
        for array, one in zip(listed.arrays, listed.about):
            parts.append((found[root][1], at, array, 0, one.bytes))
            at += one.bytes
        _core.copy_parts(parts, back=True)
    for array in listed.arrays:
        note_write(array)
    return listed.arrays
