"""The `herring` command."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from herring.base.parts import missing_part
from herring.base.version import description, version
from herring.errors import ConfigurationError, HerringError
from herring.terminal.command_line import EXIT_USAGE, Parser, guarded

__all__ = ["main", "make_parser", "version"]

_COMMANDS = {
    "run": "run a job on this machine or on several hosts",
    "server": "run a dedicated server until its job ends",
    "rendezvous": "run the lobby of an elastic job, which goes on without workers that die",
    "config": "print every setting with its value, origin and meaning",
    "check": "report what this machine has, and try a small all-reduce",
    "status": "show what a running job does, who is late, and what binds",
    "flight": "say from a flight record who waited for whom",
    "doctor": "examine the hosts and links of a job before it starts",
    "completion": "print a script for the shell's completion",
    "kubernetes": "write a Kubernetes manifest for a job with servers",
    "lab": "emulate a cluster on this machine (needs root)",
    "study": "measure algorithms and other libraries in the lab",
    "simulate": "predict how long steps take on a network",
    "soak": "train while servers are killed, and compare every bit",
}
# Those of the distribution herring-dl-lab, and the packages that have them.
_LAB = {"lab": "emulate", "study": "study", "simulate": "simulate", "soak": "soak"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the `herring` command.

    Args:
        arguments: What follows ``herring``; ``sys.argv[1:]`` by default.

    Returns:
        The exit status: 2 for wrong usage or configuration, else that of the subcommand.
    """
    return guarded(lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    words = {"help": "--help", "version": "--version"}
    if arguments[:1] and arguments[0] in words:
        arguments = [*arguments[1:], words[arguments[0]]]
    subcommand = f" {arguments[0]}" if arguments and arguments[0] in _COMMANDS else ""
    try:
        options = make_parser().parse_args(arguments)
        return int(_module(options.subcommand).handle(options))
    except ModuleNotFoundError as error:
        if not (missing := missing_part(error)):
            raise
        print(f"herring{subcommand}: {missing}", file=sys.stderr)
        return EXIT_USAGE
    except ConfigurationError as error:
        print(f"herring{subcommand}: {error}", file=sys.stderr)
        return getattr(error, "status", EXIT_USAGE)
    except HerringError as error:
        print(f"herring{subcommand}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        if "_core" not in str(error):
            raise
        print(
            f"herring{subcommand}: the extension module herring._core is missing "
            f"({error}): install the package ('pip install .' or 'make build')",
            file=sys.stderr,
        )
        return 1


def make_parser() -> Parser:
    """Makes the parser of all commands; each adds its options only when it is used."""
    parser = Parser(
        prog="herring",
        usage="herring [-h] [-V] COMMAND ...",
        description="Averages gradients through parameter servers.",
        epilog="'herring COMMAND --help' or 'herring help COMMAND' explains one, with examples.",
    )
    parser.add_argument("-V", "--version", action=_Version)
    commands = parser.add_subparsers(
        prog="herring", dest="subcommand", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, text in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            usage=f"herring {name} [options]",
        )
        command.fill = functools.partial(_fill, name)
    return parser


def _fill(name: str, command: argparse.ArgumentParser) -> None:
    module = _module(name)
    command.epilog = getattr(module, "HELP", "")
    module.add_options(command)


def _module(name: str) -> ModuleType:
    """Imports the module that has a command's options and its code.

    The other modules are not imported: some take longer than a server to start, and some may not be
    installed.
    """
    own = f"herring.command.{name}"
    return importlib.import_module(f"herring_lab.{_LAB[name]}.cli" if name in _LAB else own)


class _Version(argparse.Action):
    """Prints version, protocol and commit, which take a while to find out."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(
            option_strings, dest, nargs=0, help="show version, protocol and commit, and exit"
        )

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(description())
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
