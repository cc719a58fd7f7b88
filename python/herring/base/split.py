"""The even split, used by every operation that leaves each rank a part of something."""

from __future__ import annotations


def even_parts(items: int, parts: int) -> list[int]:
    """Returns part sizes that differ by at most one; the first ``items % parts`` are the larger.

    Args:
      items: The number of items to split, at least 0.
      parts: The number of parts, at least 1.
    """
    even, larger = divmod(items, parts)
    return [even + (part < larger) for part in range(parts)]
