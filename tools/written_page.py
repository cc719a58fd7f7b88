"""What the tools that write a page of the documentation have in common."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(page: Path, text: str, command: str, check: bool) -> int:
    """Writes a page, or says on standard error that it is not current; returns the exit status.

    Args:
      page: the file of the page.
      text: the text that it must have.
      command: the command that writes the page, for the message.
      check: whether to compare only.
    """
    if not check:
        page.write_text(text, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != text:
        print(f"{page.relative_to(ROOT)} is not current: run '{command}'", file=sys.stderr)
        return 1
    return 0
