"""Numbers the operations that have no name; the numbers are the same on every rank."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable
from itertools import count

from herring import _core
from herring.errors import HerringError

__all__ = ["forget_names", "forget_names_among", "next_name", "number_anew_after"]

_lock = threading.Lock()
_counts: dict[Hashable, defaultdict[str, count[int]]] = {}  # by group of callers, then by kind
_numberings: dict[Hashable, int] = {}  # how often numbering has begun again, by group of callers
_joins: dict[Hashable, _core.Operation] = {}  # joins under way, by group of callers


def next_name(kind: str, among: Hashable = None) -> str:
    """Returns a name for the n-th call of a kind without a name; it is the same on every rank.

    Args:
      kind: The beginning of the name.
      among: Identifies the ranks that make the call, equally on all of them. Each value has its own
        numbers. None means all ranks.
    """
    with _lock:
        _note_join(among)
        numbering = _numberings.get(among, 0)
        number = next(_counts.setdefault(among, defaultdict(count))[kind])
    return f"{kind}.{number}" if numbering == 0 else f"{kind}#{numbering}.{number}"


def number_anew_after(join: _core.Operation, among: Hashable = None) -> None:
    """Numbers calls from 0 again once a join has ended, because ranks made different calls.

    The new names differ from the earlier names, whose operations may still be under way.

    Args:
      join: The join under way.
      among: Identifies the ranks that join; None means all ranks.
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
        return  # nobody makes a call among these ranks any more
    _counts.pop(among, None)
    _numberings[among] = _numberings.get(among, 0) + 1


def forget_names_among(among: Hashable) -> None:
    """Forgets the numbers of ranks that will never make a call together again.

    Args:
      among: Identifies these ranks; None means all ranks.
    """
    with _lock:
        for kept in (_counts, _numberings, _joins):
            kept.pop(among, None)


def forget_names() -> None:
    """Begins with the first numbers again, for another job."""
    with _lock:
        _counts.clear()
        _numberings.clear()
        _joins.clear()
