"""`herring completion`: a script with which a shell completes commands, options and file names."""

from __future__ import annotations

import argparse

from herring.base.parts import import_optional, missing_part
from herring.command.cli import make_parser
from herring.errors import ConfigurationError
from herring.terminal.command_line import Parser

HELP = """\
bash, for this user, from the next shell on:
  mkdir -p ~/.local/share/bash-completion/completions
  herring completion bash > ~/.local/share/bash-completion/completions/herring

zsh, into a folder that is in $fpath before compinit runs:
  herring completion zsh > ~/.zfunc/_herring

fish, for this user:
  herring completion fish > ~/.config/fish/completions/herring.fish

Repeat the command after an update of Herring.
"""

_SHELLS = ("bash", "fish", "zsh")
_FILES = {"FILE", "PATHS", "WHERE"}
_FOLDERS = {"FOLDER", "DIR"}


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring completion`."""
    command.usage = "herring completion SHELL"
    command.add_argument("shell", choices=_SHELLS, metavar="SHELL", help="bash, fish or zsh")


def handle(options: argparse.Namespace) -> int:
    """Prints the script; raises ConfigurationError if shtab is missing or too old for the shell."""
    shtab = import_optional("shtab", "shtab", "writes the script", "completion")
    if options.shell not in shtab.SUPPORTED_SHELLS:
        raise ConfigurationError(
            f"shtab {shtab.__version__} does not know {options.shell}: pip install -U shtab"
        )
    parser = make_parser()
    _fill(parser, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, options.shell))
    return 0


def _fill(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Adds the options of all commands, and says which of them take a file or a folder."""
    if isinstance(parser, Parser):
        parser.fill_now()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in list(action.choices.items()):
                try:
                    _fill(command, file, folder)
                except ModuleNotFoundError as error:
                    if not missing_part(error):
                        raise
                    _remove(action, name)  # a command of a distribution that is not installed
        elif action.metavar in _FILES:
            action.complete = file  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = folder  # type: ignore[attr-defined]


def _remove(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    """Removes a command from the parsers and the help; shtab expects the same names in both."""
    del commands.choices[name]
    commands._choices_actions = [
        action for action in commands._choices_actions if action.dest != name
    ]
