"""Checks that ranks describe the same thing; the message shows the first difference."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from herring.arrays.groups import Group
from herring.arrays.objects import allgather_plain
from herring.base.units import ranks_text
from herring.errors import MismatchError


def job_ranks(places: Iterable[int], group: Group | None) -> list[int]:
    """Converts ranks inside a group to ranks in the job, which messages name."""
    return [place if group is None else group.ranks[place] for place in places]


def require_agreement(
    lines: Iterable[str],
    *,
    what: str,
    name: str,
    group: Group | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Compares a list of lines across all ranks (collective).

    Ranks exchange a digest. They exchange the lines only if the digests differ.

    Args:
      labels: Texts that the message puts before the lines. They may differ between ranks.

    Raises:
      MismatchError: The lists differ. Every rank raises it; the message shows the first line that
        differs and which rank has which line.
    """
    mine = list(lines)
    digest = hashlib.sha256("\n".join(mine).encode()).hexdigest()
    digests = allgather_plain(digest, name=f"{name}.digest", group=group)
    if len(set(digests)) == 1:
        return
    given = list(zip_longest(mine, labels, fillvalue=""))
    everyone = allgather_plain(given, name=f"{name}.lists", group=group)
    ranks = job_ranks(range(len(everyone)), group)
    for index, entries in enumerate(zip_longest(*everyone)):
        holders: dict[tuple[str, str], list[int]] = {}
        for rank, theirs, entry in zip(ranks, everyone, entries):
            holders.setdefault(entry or (f"(only {len(theirs)} of them)", ""), []).append(rank)
        if len({line for line, _ in holders}) > 1:
            parts = "; ".join(
                f"{ranks_text(who)}: {f'{label} {line}'.strip()}"
                for (line, label), who in holders.items()
            )
            raise MismatchError(
                f"{name}: {what} {index} differs between ranks: {parts}. "
                "Build the same model, in the same order, on every rank"
            )
    raise MismatchError(  # Only the digests differ.
        f"{name}: the lists differ between ranks. Build the same model, in the same order, on "
        "every rank"
    )
