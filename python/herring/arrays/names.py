"""Names of operations that were given none: numbers, the same on every rank."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable
from itertools import count

from herring import _core
from herring.errors import HerringError

__all__ = ["forget_names", "forget_names_among", "next_name", "number_anew_after"]

_lock = threading.Lock()
_counts: dict[Hashable, defaultdict[str, count[int]]] = {}  # by who calls, by kind
_numberings: dict[Hashable, int] = {}  # how often calls were numbered anew
_joins: dict[Hashable, _core.Operation] = {}  # under way


def next_name(kind: str, among: Hashable = None) -> str:
    """A name for an operation without one: the n-th call of its kind, the same on every rank.

    Args:
      kind: what it begins with.
      among: who calls it, the same on all of them; each has numbers of its own. None: all ranks.
    """
    with _lock:
        _note_join(among)
        numbering = _numberings.get(among, 0)
        number = next(_counts.setdefault(among, defaultdict(count))[kind])
    return f"{kind}.{number}" if numbering == 0 else f"{kind}#{numbering}.{number}"


def number_anew_after(join: _core.Operation, among: Hashable = None) -> None:
    """Has calls numbered from 0 again once a join has ended: ranks have made different ones.

    They get other names than those before, which may still be under way.

    Args:
      join: under way.
      among: as of `next_name`.
    """
    with _lock:
        _note_join(among)
        _joins[among] = join


def _note_join(among: Hashable) -> None:
    join = _joins.get(among)
    if join is None or not join.done():
        return
    del _joins[among]
    try:
        join.wait()
    except HerringError:
        return  # nobody calls anything there any more
    _counts.pop(among, None)
    _numberings[among] = _numberings.get(among, 0) + 1


def forget_names_among(among: Hashable) -> None:
    """Keeps nothing of those who called; they never will again.

    Args:
      among: as of `next_name`.
    """
    with _lock:
        for kept in (_counts, _numberings, _joins):
            kept.pop(among, None)


def forget_names() -> None:
    """Begins with the first names; another job does."""
    with _lock:
        _counts.clear()
        _numberings.clear()
        _joins.clear()
