"""Writes what docs/how-to/status.md and metrics.md show: outputs, the table of metrics, a picture.

Usage: python tools/make_status_docs.py [--check]. The package must be importable. With --check,
nothing is written, and the exit status is 1 if a page or the picture is not current. The statuses
are those of tests/support/statuses.py. A page has marks that are not visible when it is rendered:

    <!-- herring status late --all -->   the block below is this output for the status late()
    <!-- table of metrics of rank -->    the lines below, up to the next blank line, are the table
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from written_page import ROOT, write_or_check

sys.path.insert(0, str(ROOT / "tests" / "support"))
import statuses

COMMAND = "python tools/make_status_docs.py"
STATUS = ROOT / "docs" / "how-to" / "status.md"
METRICS = ROOT / "docs" / "how-to" / "metrics.md"
PICTURE = ROOT / "docs" / "pictures" / "status-watch.svg"
_OUTPUT = re.compile(r"(<!-- herring status (\w+)((?: --\w+)*) -->\n+```\n).*?(```\n)", re.DOTALL)
_TABLE = re.compile(r"(<!-- table of metrics of (\w+) -->\n).*?(?=\n\n|\n\Z)", re.DOTALL)
_COLUMNS, _LINES = 100, 24
# The picture must not load a font from elsewhere.
_SVG = re.sub(r"@font-face \{\{.*?\}\}\n\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def output(name: str, options: Sequence[str]) -> str:
    """Returns what `herring status` prints about an example."""
    from herring.command import cli

    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "status.json"
        saved.write_text(json.dumps(getattr(statuses, name)()), encoding="utf-8")
        with contextlib.redirect_stdout(printed):
            if cli.main(["status", str(saved), *options]) != 0:
                raise RuntimeError(f"herring status fails for {name}")
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def table(scope: str) -> str:
    """Returns the table of the metrics of a scope."""
    from herring.observe.metrics import METRICS as ALL
    from herring.observe.metrics import SCOPES

    own = {label for label, _ in SCOPES[scope][1]} | {"job", "slurm_job_id"}
    lines = [
        "| metric | type | more labels | field of the status | meaning |",
        "|---|---|---|---|---|",
    ]
    for metric in ALL:
        if metric.scope == scope:
            labels = ", ".join(f"`{label}`" for label in metric.label_names if label not in own)
            fields = ", ".join(f"`{field}`" for field in metric.sources)
            cells = (f"`{metric.name}`", metric.kind, labels, fields, metric.help)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def picture() -> str:
    """Returns the view of `herring status --watch` as SVG."""
    from herring.observe.live import view
    from herring.observe.schema import parse

    console = Console(
        width=_COLUMNS,
        height=_LINES,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    status = parse(json.dumps(statuses.late()), "the example")
    history = [0.1 + 0.002 * (step * 7 % 5) + 0.03 * (step > 35) for step in range(60)]
    with contextlib.redirect_stdout(io.StringIO()):
        console.print(view(status, history, console))
    text = console.export_svg(
        title="herring status --watch", code_format=_SVG, unique_id="herring-status"
    )
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def words(svg: str) -> list[str]:
    """Returns the texts of a picture: their places may differ between versions of rich."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def current(text: str) -> str:
    """Returns a page with current outputs and tables."""
    text = _OUTPUT.sub(lambda found: found[1] + output(found[2], found[3].split()) + found[4], text)
    return _TABLE.sub(lambda found: found[1] + table(found[2]), text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the pages and the picture, and returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes outputs and tables about statuses.")
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    options = parser.parse_args(arguments)
    status = 0
    for page in (STATUS, METRICS):
        text = current(page.read_text(encoding="utf-8"))
        status |= write_or_check(page, text, COMMAND, options.check)
    svg = picture()
    drawn = PICTURE.read_text(encoding="utf-8") if PICTURE.is_file() else ""
    if options.check and words(drawn) == words(svg):
        return status
    return status | write_or_check(PICTURE, svg, COMMAND, options.check)


if __name__ == "__main__":
    sys.exit(main())
