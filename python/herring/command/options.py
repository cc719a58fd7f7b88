"""Options that several commands have: those that are settings, and those that name hosts."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from herring.base.units import argument
from herring.rendezvous.settings import named
from herring.terminal.command_line import integer


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Adds options that set settings.

    An option that is not given is None, and its environment variable decides. Numbers that a
    launcher sets itself have their default instead: their variables belong to another job.

    Args:
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


def add_hosts(run: argparse.ArgumentParser) -> None:
    """Adds the options of jobs on several hosts to the parser of `herring run`."""
    options = run.add_argument_group("several hosts, by ssh")
    options.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts, each with its number of workers, in the order of ranks: host1:4,host2:4",
    )
    options.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        type=Path,
        help="file with a host per line, such as: host1 slots=4",
    )
    options.add_argument(
        "-x",
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="a variable for all workers and servers; may be repeated",
    )
    options.add_argument(
        "-p", "--ssh-port", metavar="PORT", type=integer, help="port of sshd on the hosts"
    )
    options.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", type=Path, help="private key for ssh"
    )
    add_settings(options, "ssh")
    options.add_argument(
        "--remote-python",
        metavar="FILE",
        help="Python that has Herring on the other hosts (default: the path of this Python)",
    )
    add_settings(options, "interface")
