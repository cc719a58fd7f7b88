"""Checks that each figure of the pages is accounted for in docs/claims.toml.

Usage: python tools/check_claims.py [--run] [NAME ...] (in the root of the repository; needs Python
3.11). Lists every figure that no entry of docs/claims.toml accounts for, and every entry that no
page needs, and ends with status 1 if there is one. With --run (`make claims`), it runs the commands
of the claims that take minutes, or of those with the given names, and prints what the pages say
beside the end of what the command printed.

A figure is, in text and in cells of tables, but not in code:

- a number with a unit of time, a rate in bytes per second, a percent sign, "times" or "M/B";
- how many of a number of tests pass, as in "7 of 9 tests";
- the same in a column of a table whose heading is such a unit, or ends with one as in "round (ms)";
- a number with a decimal point, unless the word before it makes it a version or a reference, as in
  "Python 3.11" and "section 6.2" (rates of networks, such as 200 Mbit/s, have no decimal point);
- a fraction in words of a time or a speed, such as "a sixth of Gloo's time" or "twice as fast".

Docstrings, pages of the laboratory, CONTRIBUTING.md and the pages in [exempt] are not looked at.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from check_prose import plain, texts

CLAIMS = Path("docs") / "claims.toml"

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_UNIT = (
    r"(?:%|us|ms|s|seconds?|minutes?|min|hours?|CPU seconds|[kMGT]?B/s|times|M/B"
    r"|of \d+ tests|(?:images|samples|sequences|steps) (?:per second|/s))"
)
_MANY = r"(?:two|three|four|five)"
_NAMED = r"(?:[A-Z][\w.()-]*|torch|jaxlib|version|release|sections?|lemma|theorem)"
_FIGURE = re.compile(
    # A number or a range with a unit; a decimal number or a range of such; a fraction in words.
    rf"(?<![\w.])(?:{_NUMBER}(?:(?: to | and |, ){_NUMBER})* ?{_UNIT}(?![\w/])"
    rf"|(?<!v)\d[\d,]*\.\d+(?:(?: to | and |, ){_NUMBER})*(?![\w.]*\d)"
    rf"|\b(?:half|{_MANY} times|a (?:third|quarter|fifth|sixth|tenth|hundredth))"
    r" (?:of )?(?:the |its |their |[A-Z]\w*'s )?(?:time|speed)\b"
    rf"|\b(?:half|twice|{_MANY} times) as (?:long|fast)\b)"
)
_VERSION = re.compile(rf"(?:^|[\s(]){_NAMED}\(?,? \(?$")


class Figure(NamedTuple):
    """A figure of a page."""

    line: int
    block: str  # the text in which it stands
    begin: int
    end: int


class Page:
    """The texts of a page, and what accounts for their figures."""

    def __init__(self, path: Path) -> None:
        """Reads a page."""
        text = path.read_text(encoding="utf-8")
        self.path = path
        self.blocks = [(line, plain(block)) for line, block, _ in texts(with_units(text))]
        self._headings: list[tuple[int, int, str]] = []
        code = False
        for number, line in enumerate(text.split("\n"), 1):
            code ^= line.startswith(("```", "~~~"))
            if not code and (found := re.match(r"(#+) (.+)$", line)):
                self._headings.append((number, len(found[1]), found[2]))

    def figures(self) -> Iterator[Figure]:
        """Yields the figures of the page."""
        for line, block in self.blocks:
            for found in _FIGURE.finditer(block):
                named = _VERSION.search(block[: found.start()])
                if not (named and re.match(r"[\d., ]+(?: (?:to|and) [\d.]+)?$", found[0])):
                    yield Figure(line, block, found.start(), found.end())

    def section(self, title: str) -> range:
        """Returns the lines of a section; none if the page does not have it."""
        for index, (begin, level, heading) in enumerate(self._headings):
            if heading == title:
                after = [at for at, other, _ in self._headings[index + 1 :] if other <= level]
                return range(begin, after[0] if after else 1 << 30)
        return range(0)

    def holds(self, fragment: str, figure: Figure) -> bool:
        """Says whether an entry's fragment of the page holds a figure."""
        if fragment.startswith("# "):
            return figure.line in self.section(fragment[2:])
        wanted = re.escape(plain(fragment))
        return any(
            found.start() <= figure.begin and figure.end <= found.end()
            for found in re.finditer(rf"(?<![\d.]){wanted}", figure.block)
        )


def with_units(text: str) -> str:
    """Returns a page in whose tables numbers have the units of their columns' headings."""
    lines = text.split("\n")
    units: list[str] = []
    for number, line in enumerate(lines):
        cells = re.split(r"(?<!\\)\|", line)
        if not line.startswith("|"):
            units = []
        elif re.match(r"\|[-:| ]+\|$", line):
            heads = re.split(r"(?<!\\)\|", lines[number - 1])
            found = [re.search(rf"(?:^|\()({_UNIT})\)?$", head.strip()) for head in heads]
            units = [one[1] if one else "" for one in found]
        elif any(units) and len(units) == len(cells):
            for place, unit in enumerate(units):
                if unit:
                    cells[place] = re.sub(rf"(?<![\w.])({_NUMBER})", rf"\1 {unit}", cells[place])
            lines[number] = "|".join(cells)
    return "\n".join(lines)


def pages() -> list[Path]:
    """Returns the pages whose figures are accounted for."""
    return [Path("README.md"), Path("CHANGELOG.md"), *sorted(Path("docs").rglob("*.md"))]


def entries(table: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Yields the name of each entry, and for each of its pages the fragments that it holds."""
    for claim in table["claim"]:
        for page, fragments in claim["pages"].items():
            yield f"claim {claim['name']}", page, fragments
    for kind, listed in table["given"].items():
        for page, fragments in listed.items():
            yield f"given.{kind}", page, fragments


def breaches(table: Mapping[str, Any], paths: Sequence[Path]) -> list[str]:
    """Returns what is wrong with the pages or with the table of claims."""
    wrong = []
    for claim in table["claim"]:
        missing = {"name", "command", "date", "commit", "machine", "pages"} - claim.keys()
        if missing or claim["machine"] not in table["machines"]:
            wrong.append(f"{CLAIMS}: claim {claim.get('name')} lacks {missing or 'its machine'}")
    needed: set[tuple[str, str, str]] = set()
    for path in paths:
        name = path.as_posix()
        if name in table["exempt"]:
            continue
        page = Page(path)
        here = [(who, part) for who, of, parts in entries(table) if of == name for part in parts]
        for figure in page.figures():
            holding = [(who, part) for who, part in here if page.holds(part, figure)]
            needed |= {(who, name, part) for who, part in holding}
            if not holding:
                said = figure.block[figure.begin : figure.end]
                around = figure.block[max(figure.begin - 60, 0) : figure.end + 40]
                wrong.append(f"{name}:{figure.line}: '{said}' has no entry: ... {around} ...")
        wrong += [
            f"{CLAIMS}: {who}: {name} has no figure in '{part}'"
            for who, part in here
            if (who, name, part) not in needed
        ]
    known = {path.as_posix() for path in paths}
    named = {of for _, of, _ in entries(table)} | {*table["exempt"]}
    return wrong + [f"{CLAIMS}: there is no page {name}" for name in sorted(named - known)]


def run(claim: Mapping[str, Any], machine: str) -> int:
    """Runs the command of a claim, and prints its end beside what the pages say."""
    print(f"== {claim['name']}: {claim['command']}")
    print(f"-- said, measured {claim['date']} at {claim['commit']} on {machine}:")
    for page, fragments in claim["pages"].items():
        print(f"   {page}: " + "; ".join(fragments))
    done = subprocess.run(
        ["bash", "-c", claim["command"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if re.search(claim.get("show", "."), line)]
    print("-- measured now" + (f" (status {done.returncode})" if done.returncode else "") + ":")
    print("\n".join(f"   {line}" for line in lines[-claim.get("lines", 20) :]), flush=True)
    return done.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks the pages, or runs the commands of claims."""
    parser = argparse.ArgumentParser(description="Checks that each figure of a page has an entry.")
    parser.add_argument("--run", action="store_true", help="run the commands of claims")
    parser.add_argument("--pages", nargs="+", type=Path, help="check these pages only")
    parser.add_argument("names", nargs="*", metavar="NAME", help="with --run: these claims only")
    options = parser.parse_args(arguments)
    table = tomllib.loads(CLAIMS.read_text(encoding="utf-8"))
    if options.run:
        chosen = [
            claim
            for claim in table["claim"]
            if (claim["name"] in options.names if options.names else claim.get("minutes"))
        ]
        return max((run(claim, table["machines"][claim["machine"]]) for claim in chosen), default=1)
    found = breaches(table, options.pages or pages())
    claims = len(table["claim"])
    print("\n".join(found) if found else f"claims: {claims}, each figure of the pages has an entry")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
