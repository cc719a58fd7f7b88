"""The even split, which everything that leaves each rank a part of something has in common."""

from __future__ import annotations

__all__ = ["even_parts"]


def even_parts(items: int, parts: int) -> list[int]:
    """Sizes of parts that differ by at most one: the first ``items % parts`` are the larger ones.

    Args:
      items: to split, 0 or more.
      parts: how many, 1 or more.
    """
    even, larger = divmod(items, parts)
    return [even + (part < larger) for part in range(parts)]
