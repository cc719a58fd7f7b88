"""Rewrites the outputs that the documentation quotes by running the programs above them.

Usage: python tools/make_quotes.py [--check] [PAGE ...]. The package must be built and importable.
A page marks a quoted output with a comment between the program's block and the output's block. The
comment is not visible in the rendered page:

    <!-- output of the block above -->
    <!-- output of the block above: lines 1-14 -->

A block that begins with ```python is run by this Python, any other block by bash. A quoted program
takes at most seconds, and prints the same on every machine. With --check, nothing is written, and
the exit status is 1 if a page is not current.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "python tools/make_quotes.py"
LIMIT = 60  # Seconds that a quoted command may take.

MARK = "<!-- output of the block above"
_QUOTE = re.compile(
    r"^```(?P<language>\w*)\n(?P<program>(?:(?!```).*\n)+)```\n"
    r"(?P<between>\n(?:(?!```|<!-- output).*\n)*?)?"
    r"(?P<mark><!-- output of the block above(?:: lines (?P<first>\d+)-(?P<last>\d+))? -->\n)"
    r"```\n(?P<output>(?:(?!```).*\n)*)```\n",
    re.MULTILINE,
)


def pages() -> list[Path]:
    """Returns the pages that quote outputs."""
    folders = (ROOT / "docs", ROOT / "lab" / "docs")
    found = [ROOT / "README.md", *(page for one in folders for page in sorted(one.rglob("*.md")))]
    return [page for page in found if MARK in page.read_text(encoding="utf-8")]


def output(language: str, program: str) -> str:
    """Runs a quoted program and returns its standard output.

    Args:
      language: ``python`` runs the program with Python; any other language, with bash.
      program: the text of the block.

    Raises:
      RuntimeError: the program fails, or takes too long.
    """
    # The output must depend on the page only: no settings from this environment, an empty folder.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HERRING_")}
    clean["PATH"] = f"{Path(sys.executable).parent}:{clean['PATH']}"
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-euc"]
    with tempfile.TemporaryDirectory(prefix="herring-quotes-") as folder:
        try:
            done = subprocess.run(
                [*command, program],
                env=clean,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"status {error.returncode}: {program}{error.stderr}") from None
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"more than {LIMIT} s: {program}") from None
    return done.stdout


def current(text: str) -> str:
    """Returns the text of a page with all quoted outputs replaced by current ones.

    Raises:
      RuntimeError: a program fails, or a mark is not between two blocks.
    """
    quotes = list(_QUOTE.finditer(text))
    if len(quotes) != text.count(MARK):
        raise RuntimeError(
            f"{text.count(MARK)} outputs are marked, but only {len(quotes)} of the marks are below "
            "a block to run and directly above a block of text"
        )
    parts, end = [], 0
    for quote in quotes:
        lines = output(quote["language"], quote["program"]).splitlines()
        if quote["first"]:
            lines = lines[int(quote["first"]) - 1 : int(quote["last"])]
        parts += [text[end : quote.start("output")], *(f"{line.rstrip()}\n" for line in lines)]
        end = quote.end("output")
    return "".join([*parts, text[end:]])


def differences(page: Path) -> str:
    """Returns the differences between a page and its programs' output, or an empty text."""
    text = page.read_text(encoding="utf-8")
    lines: Iterable[str] = difflib.unified_diff(
        text.splitlines(keepends=True), current(text).splitlines(keepends=True), "page", "program"
    )
    return "".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the pages, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Rewrites the outputs that pages quote.")
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all pages")
    options = parser.parse_args(arguments)
    status = 0
    for page in options.pages or pages():
        try:
            if not options.check:
                page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")
            elif found := differences(page):
                print(f"{page.name} is not current: run '{COMMAND}'\n{found}", file=sys.stderr)
                status = 1
        except RuntimeError as error:
            print(f"{page.name}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
