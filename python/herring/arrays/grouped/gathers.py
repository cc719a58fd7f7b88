"""Lists of arrays that are gathered or broadcast: one all-gather of them and of what they are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from herring import _core
from herring.arrays.arguments import rank_of
from herring.arrays.collectives import allgather, called, empty, named, note_write
from herring.arrays.grouped.listed import Array, Listed, numpy_dtype, text_of
from herring.arrays.groups import Group, scope_of
from herring.errors import MismatchError

_HEAD = 16  # bytes before what is said about a list: its length, and that of the data behind it


def _gather(
    kind: str,
    name: str | None,
    timeout: float | None,
    group: Group | None,
    look: Callable[[], tuple[Listed, dict[str, Any], bool]],
) -> tuple[Listed, str, list[tuple[dict[str, Any], np.ndarray]]]:
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
    name = named(name, kind, group)
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

    def look() -> tuple[Listed, dict[str, Any], bool]:
        listed = Listed("grouped_allgather", arrays, writable=False, rows=True)
        return listed, {"list": listed.about}, True

    listed, name, found = _gather("grouped_allgather", name, timeout, group, look)
    lists = [[Array(d, tuple(shape)) for d, shape in about["list"]] for about, _ in found]
    _require_same(
        name,
        group,
        [[(one.dtype, one.shape[1:]) for one in about] for about in lists],
        [text_of(about) for about in lists],
    )
    pieces: list[list[np.ndarray]] = [[] for _ in listed.arrays]
    for about, (_, data) in zip(lists, found):
        at = 0
        for i, one in enumerate(about):
            piece = data[at : at + one.bytes].view(numpy_dtype(one.dtype))
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

    def look() -> tuple[Listed, dict[str, Any], bool]:
        rank_of(root, scope.size, "grouped_broadcast", group)
        listed = Listed("grouped_broadcast", arrays, writable=True, rows=False)
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
