"""Prints which part of the lines and branches of each room the tests execute.

Usage: python tools/print_coverage.py SUMMARY ...

A SUMMARY is what `gcovr --json-summary` or `coverage json` has written. A room is a folder of src
or of python/herring; files beside these folders are a room together.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Counts = tuple[int, int, int, int]  # lines, those executed, branches, those executed


def counted(summary: dict[str, Any]) -> dict[str, Counts]:
    """Returns the counts of every file in a summary of either tool."""
    if isinstance(summary["files"], list):
        names = ("line_total", "line_covered", "branch_total", "branch_covered")
        return {one["filename"]: tuple(one[name] for name in names) for one in summary["files"]}
    names = ("num_statements", "covered_lines", "num_branches", "covered_branches")
    return {
        path: tuple(one["summary"][name] for name in names)
        for path, one in summary["files"].items()
    }


def rooms(files: dict[str, Counts]) -> dict[str, Counts]:
    """Returns the counts of every room, and of each tree as a whole at its end."""
    found: dict[str, Counts] = {}
    for path, counts in sorted(files.items()):
        tree = "python/herring" if path.startswith("python/") else "src"
        inside = Path(path).relative_to(tree).parts
        for room in (f"{tree}/{inside[0]}" if len(inside) > 1 else tree, f"{tree} in all"):
            before = found.pop(room, (0, 0, 0, 0))
            found[room] = tuple(a + b for a, b in zip(before, counts))
    return found


def table(found: dict[str, Counts]) -> str:
    """Returns the table as text."""

    def part(executed: int, all_: int) -> str:
        return f"{100 * executed / all_:.1f} %" if all_ else "-"

    rows = [("", "lines", "executed", "branches", "executed")]
    rows += [
        (room, str(lines), part(run, lines), str(branches), part(taken, branches))
        for room, (lines, run, branches, taken) in found.items()
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"{row[0]:{width}}" + "".join(f"{cell:>10}" for cell in row[1:]) for row in rows
    )


def main() -> None:
    """Prints a table for each summary."""
    for path in sys.argv[1:]:
        print(table(rooms(counted(json.loads(Path(path).read_text(encoding="utf-8"))))))


if __name__ == "__main__":
    main()
