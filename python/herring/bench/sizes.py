"""Sizes as people write them: 4K, 1M and 100MB are decimal, 64KiB and 1MiB are binary."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Returns the bytes that ``text`` stands for, such as ``25M``, ``1.5GB`` or ``64KiB``.

    Raises:
      ValueError: it is no size, not a whole number of bytes, or zero.
    """
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 4K, 25M or 64KiB")
    size = float(match[1]) * _UNITS[(match[2] or "").upper()]
    if size != int(size) or size < 1:
        raise ValueError(f"{text!r} is not a positive whole number of bytes")
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """Returns the sizes of a comma-separated list."""
    return [parse_size(part) for part in text.split(",")]


def format_size(size: int) -> str:
    """Returns the shortest exact way to write ``size``: ``25M``, else ``64Ki``, else digits."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    for factor, unit in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
