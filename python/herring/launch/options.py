"""Options of the command that are settings: names, help and limits come from the table."""

from __future__ import annotations

import argparse
import functools

from herring.base.units import argument
from herring.rendezvous.settings import named


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Adds options that set settings.

    An option that is not given is None, and its environment variable decides. Numbers that a
    launcher sets itself have their default instead: their variables belong to another job.

    Args:
        parser: The parser or the group that gets the options.
        names: Names of the settings, in the order of the help.
    """
    for name in names:
        row = named(name)
        flags = row.flags.split()
        own = row.scope == "launcher" and row.type == "int"
        elsewhere = ", else ".join(filter(None, ["" if own else row.env, row.default]))
        what = row.help if row.help[1].isupper() else row.help[0].lower() + row.help[1:]
        text = f"{what} (default: {elsewhere})"
        if row.type == "bool":
            parser.add_argument(*flags, dest=name, action="store_true", help=text)
            continue
        parser.add_argument(
            *flags[:-1],
            dest=name,
            metavar=flags[-1],
            type=argument(functools.partial(row.parse, origin="")),
            default=row.default if own else None,
            help=text,
        )
