"""The even split, used by every operation that leaves each rank a part of something."""

from __future__ import annotations


def even_parts(items: int, parts: int) -> list[int]:
    """Returns part sizes that differ by at most one; the first ``items % parts`` are larger."""
    even, larger = divmod(items, parts)
    return [even + (part < larger) for part in range(parts)]
