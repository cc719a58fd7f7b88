"""Numbers the operations that have no name; the numbers are the same on every rank."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable
from itertools import count, starmap, tee

from herring import _core
from herring.errors import HerringError

_lock = threading.Lock()
_counts: dict[Hashable, defaultdict[str, count[int]]] = {}  # by group of callers, then by kind
_numberings: dict[Hashable, int] = {}  # how often numbering has begun again, by group of callers
# Joins under way, by group of callers: at most one of each, as a second one is refused.
_joins: dict[Hashable, list[_core.Operation]] = {}


def next_name(kind: str, among: Hashable = None) -> str:
    """Returns the same name on all ranks of `among` for the n-th call of a kind without a name."""
    with _lock:
        _note_join(among)
        numbering = _numberings.get(among, 0)
        number = next(_counts.setdefault(among, defaultdict(count))[kind])
    return f"{kind}.{number}" if numbering == 0 else f"{kind}#{numbering}.{number}"


def submit_join(submit: Callable[[], _core.Operation], among: Hashable = None) -> _core.Operation:
    """Submits a join; once it has ended, calls are numbered from 0 again, as ranks made others.

    The new names differ from the earlier names, whose operations may still be under way.

    Args:
      submit: Submits the join. It is not a function in Python, but a `functools.partial` of one in
        C++.
    """
    with _lock:
        _note_join(among)
        joins = _joins.setdefault(among, [])
    # No Python runs between the submission and the entry, and so no handler of a signal that raises
    # an error. This rank has joined even if its program is interrupted here.
    submitted, result = tee(starmap(submit, ((),)))
    joins.extend(submitted)
    return next(result)  # another thread may have removed it from the list already


def has_joined(among: Hashable) -> bool:
    """Returns whether this rank has joined, and its join has no result yet."""
    with _lock:
        _note_join(among)
        return bool(_joins.get(among))


def _note_join(among: Hashable) -> None:
    joins = _joins.get(among)
    if not joins or not joins[0].done():
        return
    join = joins.pop(0)
    try:
        join.wait()
    except HerringError:
        return  # nobody makes a call among these ranks any more
    _counts.pop(among, None)
    _numberings[among] = _numberings.get(among, 0) + 1


def forget_names_among(among: Hashable) -> None:
    """Forgets the numbers of ranks that will never make a call together again."""
    with _lock:
        for kept in (_counts, _numberings, _joins):
            kept.pop(among, None)


def forget_names() -> None:
    """Begins with the first numbers again, for another job."""
    with _lock:
        _counts.clear()
        _numberings.clear()
        _joins.clear()
