"""Options of the command that are settings: their names, help and limits are the table's."""

from __future__ import annotations

import argparse
import functools

from herring.rendezvous.settings import named
from herring.units import argument

__all__ = ["add_settings"]


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Adds options that set settings.

    What is not given is None, and the variable holds. The numbers that a launcher sets itself have
    their default instead: a variable of theirs belongs to another job.

    Args:
        parser: Gets the options; it is a parser or a group.
        names: Of the settings, in the order of the help.
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
