"""What all of Herring's command lines share: one style of errors, and clean exits."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import io
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

EXIT_USAGE = 2
_REWORDED = (
    (r"expected one argument", "needs a value"),
    (r"expected at least one argument", "needs at least one value"),
    (r"ignored explicit argument (.*)", r"takes no value, and was given \1"),
    (r"invalid int value: (.*)", r"\1 is not an integer"),
    (r"invalid float value: (.*)", r"\1 is not a number"),
)


# What options are called elsewhere. The first one that a command has is meant.
_PROCESSES = ("-n", "--workers", "--hosts", "--nodes")
_MEANT = {
    **dict.fromkeys(
        ("--workers", "--ranks", "--np", "-np", "--nproc", "--num-proc", "--processes", "--size"),
        _PROCESSES,
    ),
    **dict.fromkeys(("--nproc-per-node", "--nproc_per_node"), _PROCESSES),
    **dict.fromkeys(("--hosts", "--nodes", "--nnodes"), ("--hosts", "--nodes", "-n")),
    **dict.fromkeys(("--bandwidth", "--speed", "--bw"), ("--rate",)),
    **dict.fromkeys(("--latency", "--delay"), ("--rtt",)),
    **dict.fromkeys(("--output", "--folder", "-o"), ("--out", "--output-filename")),
    **dict.fromkeys(("--timeout", "--deadline"), ("--time-limit", "--start-timeout", "--timeout")),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors say what is allowed, and whose options are never abbreviated.

    An abbreviation that is unique today becomes ambiguous with the next option and breaks scripts.
    """

    # Adds the options; called only when this parser is used. The modules that describe the options
    # of `lab`, `study` and `simulate` take longer to import than a server to start.
    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)
        self._given: list[str] = []

    def fill_now(self) -> None:
        """Adds the options that `fill` describes, unless that has been done."""
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses like `argparse`, but ends with an error if an argument is left over.

        Only here is it known which command the argument was given to.
        """
        self.fill_now()
        self._given = list(sys.argv[1:] if args is None else args)
        found, left = super().parse_known_args(args, namespace)
        if left:
            self.error(self._unknown(left))
        return found, left

    def error(self, message: str) -> NoReturn:
        """Ends the process with a line that says what is wrong, and with the usage."""
        print(f"{self.prog}: {self._reworded(message)}", file=sys.stderr)
        usage = self.format_usage().rstrip()
        if "\n" in usage:
            usage = f"usage: {self.prog} [options]"
        print(f"{usage}\n'{self.prog} --help' explains it", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def _unknown(self, left: Sequence[str]) -> str:
        option = next((each for each in left if each.startswith("-")), None)
        if option is None:
            return f"{left[0]!r} is one argument too many"
        name = option.partition("=")[0]
        # Options that are taken for the sake of other programs' users have no help.
        known = [
            each
            for action in self._actions
            for each in action.option_strings
            if action.help != argparse.SUPPRESS or name.startswith(f"{each}-")
        ]
        return f"there is no option {name}{suggestion(name, known)}"

    def _reworded(self, message: str) -> str:
        missing = re.fullmatch(r"the following arguments are required: (.*)", message)
        if missing:
            return self._slip() or f"{missing.group(1)} is missing"
        match = re.fullmatch(r"argument (.*?): (.*)", message, re.DOTALL)
        if not match:
            return message
        name, text = self._as_given(match.group(1)), match.group(2)
        choice = re.fullmatch(r"invalid choice: (['\"])(.*?)\1 \(choose from (.*)\)", text)
        if choice:
            value = choice.group(2)
            known = [each.strip(" '\"") for each in choice.group(3).split(",")]
            what = "a command" if name == "COMMAND" else f"allowed for {name}"
            allowed = ", ".join(known)
            return f"{value!r} is not {what} (there are {allowed}){suggestion(value, known)}"
        if not name.startswith("-") and (slip := self._slip()):
            return slip  # argparse takes the value of an unknown option for an argument
        for pattern, words in _REWORDED:
            if re.fullmatch(pattern, text):
                text = re.sub(pattern, words, text)
        return f"{name} {text}"

    def _slip(self) -> str:
        """Names an option that does not exist, the likeliest reason; empty if there is none."""
        end = self._given.index("--") if "--" in self._given else len(self._given)
        slips = [
            each
            for each in self._given[:end]
            if each.startswith("--") and each.partition("=")[0] not in self._option_string_actions
        ]
        return self._unknown(slips) if slips else ""

    def _as_given(self, names: str) -> str:
        """Returns the name by which the user gave an option that has several."""
        for name in names.split("/"):
            if any(each.partition("=")[0] == name for each in self._given):
                return name
        return names.split("/")[0]


def suggestion(word: str, known: Sequence[str]) -> str:
    """Returns ``; did you mean 'that'?``, or an empty string if nothing resembles `word`.

    A word with the same meaning comes first (``--workers``: ``--hosts``), then one that begins with
    `word` or with which `word` begins, then one that is spelt alike.
    """
    like = [each for each in _MEANT.get(word, ()) if each in known]
    like += sorted((each for each in known if each.startswith(word)), key=len)
    like += sorted(
        (each for each in known if word.startswith(f"{each}-") and each.strip("-")),
        key=len,
        reverse=True,
    )
    like += difflib.get_close_matches(word, known, 1)
    return f"; did you mean {like[0]!r}?" if like else ""


def integer(text: str) -> int:
    """Converts the value of an option that takes an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def log_line(level: str, command: str, text: str) -> str:
    """Returns a line of a command's log, in the format of the core's log lines.

    Args:
        level: ``info``, ``warning`` or ``error``.
        command: The command that speaks, such as ``herring run``.
    """
    now = time.time()
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    return f"{date}.{int(now % 1 * 1000):03d} [{command}] {level}: {text}\n"


def guarded(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status.

    Handles Ctrl-C, output that goes nowhere, and an encoding of the output that lacks characters.
    """
    _escape_output()
    try:
        try:
            status = command()
        except SystemExit as ending:  # after a help text, or an error
            if isinstance(ending.__context__, BrokenPipeError):  # rich ends the process for it
                raise ending.__context__ from None
            _flush()
            raise
        _flush()
        return status
    except BrokenPipeError:  # as in "herring simulate ... | head"
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if not _output_is_broken():
            raise
        _drop_output()
        print(f"herring: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _escape_output() -> None:
    """Lets the standard output escape what its encoding lacks, such as letters in a job's name."""
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return
    if sys.stdout.errors in ("strict", "surrogateescape"):  # not what PYTHONIOENCODING asks for
        codecs.register_error("herring.escape", _escaped)
        sys.stdout.reconfigure(errors="herring.escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Escapes characters that cannot be encoded as JSON does, so that JSON remains valid."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _output_is_broken() -> bool:
    """Returns whether the standard output takes nothing, as on a full disk."""
    try:
        if sys.stdout is not None:
            sys.stdout.write("\n")  # what could not be written before is lost
            sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Drops buffered output, which has nowhere to go, not even when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
