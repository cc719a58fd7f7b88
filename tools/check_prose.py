"""Checks that the pages are written in short sentences and plain words.

Usage: python tools/check_prose.py [--list WORDS] [PAGE ...] (in the root of the repository; without
a page, all of them). Lists every breach and ends with status 1 if there is one. A sentence ends at
a full stop, a question mark or an exclamation mark, and at the end of an item or of a table's cell.
Code in a line counts as one word; blocks of code do not count. With --list, it lists sentences of
more than so many words and checks nothing else. proselint checks the pages too if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# Checks of proselint that look at code and at marks of Markdown.
NOT_CHECKED = ("typography.", "lexical_illusions:", "dates_times.", "misc.phrasal_adjectives.")
MOST_WORDS = 35  # in any sentence
MOST_WORDS_ON_AVERAGE = 18  # over all pages

# What is not said, and what to say.
WORDS = {
    r"(?<![Tt]here )\b(?:is|are) no (?!longer\b)[a-z]": "'is not a ...', or what it is",
    r"(?:^|[.!?] )Likewise\b": "say what holds",
    r"(?:^|[.!?] )As above\b": "say what holds",
    r"\bas above\b": "say what holds",
    r"\brooms?\b(?! (?:for|in|to)\b)": "'module' or 'folder'",
    r"(?<!divided )\bby M/B\b": "'divided by M/B'",
    r"\bin vain\b": "say what happens",
    r"\bmust need\b": "'must'",
    r"\bof its own\b.*\bof its own\b": "once is enough",
    r"\bis to be\b": "'must be', or who does it",
    r"\bthere it is\b": "say what is there",
    r"\b(?:very|really|simply|obviously|of course|just)\b": "leave it out",
    r"\b(?:utilize|utilise|leverage)s?\b": "'use'",
    r"\bin order to\b": "'to'",
}
# The page that is written from the table of settings.
SKIPPED = {"settings.md"}


def pages() -> list[Path]:
    """Returns all pages that are checked."""
    found = [*Path().glob("*.md"), *Path("docs").rglob("*.md"), *Path("lab").rglob("*.md")]
    found += [*Path("src").glob("*/README.md"), Path("bindings/README.md")]
    return [path for path in sorted(found) if path.name not in SKIPPED]


def texts(page: str) -> Iterator[tuple[int, str, bool]]:
    """Yields the texts of a page: the first line, the text, and whether it is a table's cell."""
    lines = page.split("\n")
    fence, comment, start, paragraph = "", False, 0, []

    def end() -> Iterator[tuple[int, str, bool]]:
        if paragraph:
            yield start, " ".join(paragraph), False
            paragraph.clear()

    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        mark = re.match(r"(```+|~~~+)", stripped)
        if fence or mark:
            yield from end()
            if mark and not fence:
                fence = mark[1]
            elif fence and stripped == fence:
                fence = ""
            continue
        if comment or stripped.startswith("<!--"):
            comment = "-->" not in stripped
            continue
        if stripped.startswith("|"):
            yield from end()
            for cell in re.split(r"(?<!\\)\|", stripped)[1:-1]:
                for part in re.split(r";\s+", cell):  # cells are lists as often as sentences
                    yield number, part.strip(), True
            continue
        if not stripped or stripped.startswith(("#", "---")) or line.startswith("    "):
            yield from end()
            continue
        if re.match(r"([-*+]|\d+\.) ", stripped):
            yield from end()
            stripped = re.sub(r"^([-*+]|\d+\.) ", "", stripped)
        if not paragraph:
            start = number
        paragraph.append(stripped)
    yield from end()


def plain(text: str) -> str:
    """Returns a text without its marks: code is one word, a link is its text."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"``[^`]+``|`[^`]+`", "Code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text)
    text = re.sub(r"https?://\S+", "Code", text)
    return re.sub(r"\*+|(?<!\w)_|_(?!\w)", "", text)


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text."""
    text = re.sub(r"\b(e\.g|i\.e|etc|et al|vs|cf|no|F|I|S)\.", r"\1", plain(text))
    text = re.sub(r"\.\.\.", "", text)
    return [part for part in re.split(r"(?<=[.!?])[\"')]*\s+", text) if count(part)]


def count(sentence: str) -> int:
    """Returns how many words a sentence has."""
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def breaches(path: Path, lengths: list[int]) -> list[str]:
    """Returns what is wrong with a page; appends the lengths of its sentences outside of tables."""
    found = []
    for line, text, is_cell in texts(path.read_text(encoding="utf-8")):
        for sentence in sentences(text):
            words = count(sentence)
            if not is_cell:
                lengths.append(words)
            if words > MOST_WORDS:
                found.append(f"{path}:{line}: {words} words, allowed are {MOST_WORDS}: {sentence}")
            for pattern, instead in WORDS.items():
                if path.name != "CHANGELOG.md" and (match := re.search(pattern, sentence)):
                    found.append(f"{path}:{line}: '{match[0].strip(' .')}'; say {instead}")
    return found


def of_proselint(paths: Sequence[Path]) -> list[str]:
    """Returns what proselint says about pages; nothing if it is not installed."""
    if importlib.util.find_spec("proselint") is None:
        return []
    command = [sys.executable, "-m", "proselint", "check", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r"^\S+:\d+:\d+: .*$", done.stdout, re.MULTILINE)
    return [line for line in found if not line.split(": ", 1)[1].startswith(NOT_CHECKED)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks pages."""
    parser = argparse.ArgumentParser(description="Checks the pages' sentences and words.")
    parser.add_argument("--list", type=int, metavar="WORDS", help="list sentences with more words")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE")
    options = parser.parse_args(arguments)
    if options.list is not None:
        for path in options.pages or pages():
            for line, text, _ in texts(path.read_text(encoding="utf-8")):
                for sentence in sentences(text):
                    if count(sentence) > options.list:
                        print(f"{path}:{line}: {count(sentence)}: {sentence}")
        return 0
    lengths: list[int] = []
    paths = options.pages or pages()
    found = [breach for path in paths for breach in breaches(path, lengths)]
    mean = sum(lengths) / max(len(lengths), 1)
    if mean > MOST_WORDS_ON_AVERAGE:
        found.append(f"{mean:.1f} words in a sentence on average, allowed: {MOST_WORDS_ON_AVERAGE}")
    found += of_proselint(paths)
    print("\n".join(found) if found else f"prose: {len(lengths)} sentences, {mean:.1f} words each")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
