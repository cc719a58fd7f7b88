"""`herring config`: prints every setting with its value, origin and meaning."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from herring.errors import ConfigurationError
from herring.terminal.command_line import suggestion


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring config`."""
    command.usage = "herring config [--json] [NAME ...]"
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("name", nargs="*", help="only settings whose name contains this")


def settings_rows(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns the settings of this process.

    Args:
        names: Parts of names. Only settings whose name contains one of them are returned, or all
            settings if there are none.

    Returns:
        One dictionary per setting: name, env, type, scope, default, value, origin, help, allowed,
        and for programs minimum, maximum and choices.

    Raises:
        ConfigurationError: A variable has a value that is not allowed, or no name matches.
    """
    from herring import _core

    wanted = [name.lower().removeprefix("herring_") for name in names]
    rows = [dict(row) for row in _core.settings()]
    if wanted:
        rows = [row for row in rows if any(part in row["name"] for part in wanted)]
        if not rows:
            known = [row["name"] for row in _core.settings()]
            meant = next(filter(None, (suggestion(part, known) for part in wanted)), "")
            raise ConfigurationError(
                f"no setting's name contains {' or '.join(names)}{meant or ':'} 'herring config' "
                "lists all"
            )
    return rows


def handle(options: argparse.Namespace) -> int:
    """Prints the settings as a table, or as JSON."""
    rows = settings_rows(options.name)
    from herring import _core

    for warning in _core.setting_warnings():
        print(f"warning: {warning}", file=sys.stderr)
    if options.json:
        json.dump(rows, sys.stdout, indent=2, default=str)
        print()
        return 0
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("variable", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("origin", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for row in rows:
        changed = row["origin"] != "default"
        meaning = Text(str(row["help"]))
        meaning.append(f" ({row['allowed']})", style="dim")
        value = "" if row["value"] is None else str(row["value"])
        table.add_row(
            Text(str(row["env"])),
            Text(value, style="bold" if changed else ""),
            Text(str(row["origin"]), style="green" if changed else "dim"),
            meaning,
        )
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log has no width; do not fold tables to 80
    console.print(table)
    return 0
