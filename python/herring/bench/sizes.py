"""Parses and formats sizes: 4K, 1M and 100MB are decimal, 64KiB and 1MiB are binary."""

from __future__ import annotations

from herring.base.units import parse_size


def parse_sizes(text: str) -> list[int]:
    """Returns the sizes, in bytes, in a comma-separated list."""
    return [parse_size(part) for part in text.split(",")]


def format_size(size: int) -> str:
    """Formats ``size`` exactly: with a decimal unit if possible, else a binary one, else digits."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "K")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    for factor, unit in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
