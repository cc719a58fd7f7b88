"""Prints reports: tables without a frame, and lines with a style for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines whose columns begin at the same places."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]


def print_lines(lines: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Prints lines of pieces, each a text with its style; long lines are not folded."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for pieces in lines:
        console.print(Text.assemble(*pieces))
