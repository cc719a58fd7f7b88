"""`herring status`: who is late in a running job, what binds, and what ranks wait for."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from herring.base import user_folder
from herring.base.parts import data_file
from herring.base.units import argument, parse_seconds
from herring.errors import ConfigurationError
from herring.observe import client, metrics, words
from herring.observe.client import Endpoint
from herring.observe.schema import StatusError, parse

HELP = """\
examples:
  herring status
      the job of this user that runs on this machine; if there are several, a list of them

  herring status --watch
      a view that follows the job; q ends it

  herring status host1:9400 --all
      a job that was started with HERRING_STATUS=0.0.0.0:9400 and whose rank 0 runs on host1, with
      tables of all its ranks and servers

  herring status --json > status.json; herring status status.json
      saves a status, and shows it later

The exit status is 0, or 1 if there is no such job or it does not answer, or 2 for wrong usage.
"""

_EVERY = 1.0  # seconds between two statuses with --watch
_LONGEST = 86400.0  # seconds of --timeout and --watch
_WIDE = 240  # columns of tables where there is no terminal


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring status`."""
    command.usage = "herring status [WHERE] [options]"
    command.add_argument(
        "where",
        nargs="?",
        metavar="WHERE",
        default="",
        help="socket of a job, HOST:PORT of its HERRING_STATUS, or a file with a saved status "
        "(default: this user's job on this machine)",
    )
    command.add_argument("--job", metavar="NAME", help="the job of this name on this machine")
    output = command.add_mutually_exclusive_group()
    output.add_argument("--all", action="store_true", help="add tables of all ranks and servers")
    output.add_argument("--json", action="store_true", help="print the status as JSON")
    output.add_argument(
        "--watch",
        nargs="?",
        const="",
        metavar="SECONDS",
        help="follow the job; a new status every SECONDS (default: 1)",
    )
    output.add_argument(
        "--metrics", action="store_true", help="print the status as metrics for Prometheus"
    )
    output.add_argument(
        "--record",
        action="store_true",
        help="let all ranks write what they did last to one file, and print its name",
    )
    output.add_argument(
        "--dashboard", action="store_true", help="print a dashboard for Grafana, and ask no job"
    )
    output.add_argument(
        "--token",
        action="store_true",
        help="print the token with which Prometheus reads a job beyond loopback; it follows from "
        "HERRING_SECRET_FILE",
    )
    command.add_argument(
        "--timeout",
        type=argument(_seconds),
        default=5.0,
        metavar="TIME",
        help="how long the job may take to answer (default: 5s)",
    )


def handle(options: argparse.Namespace) -> int:
    """Prints the status of a job; raises ConfigurationError if options do not say of which."""
    try:
        return _handle(options)
    except StatusError as error:
        sys.stdout.flush()
        print(f"herring status: {error}", file=sys.stderr)
        return 1


def _handle(options: argparse.Namespace) -> int:
    every = _every(options)
    if options.where and options.job is not None:
        raise ConfigurationError("WHERE and --job both say which job is meant: give one of them")
    if options.dashboard:
        if options.where or options.job is not None:
            raise ConfigurationError("--dashboard is the same for all jobs: give it no WHERE")
        print(json.dumps(data_file("observe/dashboard.json"), indent=2))
        return 0
    if options.token:
        if options.where or options.job is not None:
            raise ConfigurationError("--token follows from the secret alone: give it no WHERE")
        print(client.token())
        return 0
    place = client.endpoint(options.where) if options.where else _only_job(options)
    if place is None:
        return 0
    if options.record:
        begun = time.time()
        file = Path(client.ask(place, "record", options.timeout).rstrip("\n"))
        _wait_for(file, begun, min(options.timeout, 3.0))
        print(file)
    elif options.json:
        sys.stdout.write(_ended(_fetch_text(place, options.timeout)))
    elif options.metrics:
        sys.stdout.write(metrics.prometheus(_fetch(place, options.timeout)))
    elif every:
        _watch(place, every, options.timeout)
    else:
        _show(_fetch(place, options.timeout), options.all)
    return 0


def _wait_for(file: Path, begun: float, seconds: float) -> None:
    """Waits until the file is there that the job of this machine has begun to write."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if file.stat().st_mtime > begun - 5:  # a job writes no two records in 5 s
                return
        time.sleep(0.02)
    print(f"herring status: {file} is not there yet", file=sys.stderr)


def _seconds(text: str) -> float:
    """Returns a time in seconds; raises ConfigurationError if the system cannot wait so long."""
    seconds = parse_seconds(text)
    if seconds > _LONGEST:
        raise ConfigurationError(f"{text!r} is too long: allowed are times above 0 and up to 24h")
    return seconds


def _every(options: argparse.Namespace) -> float:
    """Returns the seconds of --watch, 0 without it; the word after --watch may also be WHERE."""
    if options.watch is None:
        return 0.0
    if not options.watch:
        return _EVERY
    try:
        return _seconds(options.watch)
    except ConfigurationError as error:
        if options.where or not set(options.watch) & set("/:."):
            raise ConfigurationError(f"--watch: {error}") from None
        options.where = options.watch
        return _EVERY


def _only_job(options: argparse.Namespace) -> Endpoint | None:
    """Returns the only job; None after a list of several; an error if there is none."""
    found, skipped = client.find()
    for why in skipped:
        print(f"herring status: skipped {why}", file=sys.stderr)
    if options.job is not None:
        named = [path for path in found if _job_of(path) == options.job]
        named = named or [p for p in found if _called(p, options.timeout) == options.job]
        if not named:
            others = f"there are: {', '.join(map(_job_of, found))}" if found else _nothing()
            raise StatusError(f"no job of this user is named {options.job!r}; {others}")
        found = named
    if not found:
        raise StatusError(
            f"{_nothing()}. A job on another machine: 'herring status HOST:PORT', with the "
            "HERRING_STATUS that it was started with"
        )
    if len(found) == 1:
        return Endpoint(str(found[0]), found[0])
    if options.json or options.metrics or options.record or options.watch is not None:
        names = ", ".join(map(str, found))
        raise ConfigurationError(f"several jobs run here; say which one is meant: {names}")
    _list(found, options.timeout)
    return None


def _nothing() -> str:
    folders = ", ".join(map(str, user_folder.candidates(os.environ)))
    return f"no job of this user runs on this machine (its socket would be in {folders})"


def _job_of(path: Path) -> str:
    """Returns the name of a job, as its socket is called: JOB-PID.sock."""
    return path.stem.rpartition("-")[0]


def _called(path: Path, timeout: float) -> str | None:
    """Returns what a job is called in its status (``herring run --name``); None if it is silent."""
    try:
        return _fetch(Endpoint(str(path), path), timeout)["job"]
    except StatusError:
        return None


def _list(found: Sequence[Path], timeout: float) -> None:
    """Prints a line about each job, and how to choose one."""
    for path in found:
        try:
            text = words.one_line(_fetch(Endpoint(str(path), path), timeout))
        except StatusError as error:
            text = str(error)
        print(f"{path}\n    {text}")
    named = {_job_of(path) for path in found}
    choice = "--job NAME or its path" if len(named) == len(found) else "its path"
    print(
        f"\n{len(found)} jobs run here. Show one of them with {choice}: herring status {found[0]}"
    )


def _fetch_text(place: Endpoint, timeout: float) -> str:
    """Returns the JSON of a status, once it is known to be one."""
    text = client.ask(place, "json", timeout)
    parse(text, place.name)
    return text


def _fetch(place: Endpoint, timeout: float) -> dict[str, Any]:
    return parse(client.ask(place, "json", timeout), place.name)


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _show(status: Mapping[str, Any], all_of_it: bool = False) -> None:
    """Prints a status as text."""
    from rich.console import Console
    from rich.text import Text

    from herring.observe.tables import sheets, text_of

    console = Console(soft_wrap=True, highlight=False)
    for line in words.lines(status, all_of_it):
        console.print(text_of(line))
    wide = console if console.is_terminal else Console(width=_WIDE, highlight=False)
    for sheet in sheets(status) if all_of_it else ():
        console.print()
        wide.print(sheet.fitted(wide.width, wide.options.ascii_only))
        if missing := sheet.left_out(wide.width):
            console.print(Text(f"A wider terminal also shows {', '.join(missing)}.", "dim"))


def _watch(place: Endpoint, every: float, timeout: float) -> None:
    from rich.console import Console

    from herring.observe.live import follow

    job = None  # the elastic job at an address, where each of its generations listens

    def fetch() -> dict[str, Any]:
        status = _fetch(place, timeout)
        if job is not None and client.elastic_job(status["id"] or status["job"] or "") != job:
            raise StatusError(f"{place.name} is the address of another job now")
        return status

    def later() -> None:
        nonlocal place
        if place.path is not None and (found := client.next_generation(place.path)):
            place = Endpoint(str(found), found)

    if place.path is None:
        status = fetch()
        job = client.elastic_job(status["id"] or status["job"] or "")
        elastic, where = job is not None, "at this address"
    else:
        elastic, where = client.is_elastic(place.path), "on this machine"
    console = Console(highlight=False)
    follow(fetch, every, console, _show, later if elastic else None, where)
