"""`herring soak`: trains while servers die, and compares every bit with a job without faults."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herring.base.provenance import provenance
from herring.base.units import argument, parse_seconds, parse_size
from herring.errors import ConfigurationError
from herring.terminal.command_line import integer

if TYPE_CHECKING:
    from herring_lab.soak.faults import Faults
    from herring_lab.soak.job import Layout

HELP = """\
examples:
  herring soak
      trains for one minute, kills a random server every 2 s, and trains the same again in peace

  herring soak --minutes 10 --kill-every 1 --stop-share 0.3
      harder: a fault every second, and three of ten stop a server (SIGSTOP). A stopped process is
      killed within 4 s, before or after the job gives it up

  herring soak --kill-every 0.3 --overlap --servers 4
      the next fault does not wait until all servers serve again

  herring soak --workers -n 4
      kills workers of an elastic job instead, rank 0 among them, and starts them again

  herring soak --seed 7 --json --plot soak.svg
      the same servers and pauses as in another run with seed 7

how it works:
  A job of 'herring run' with HERRING_FAILOVER trains a model, with named all-reduces in between.
  Meanwhile random servers are killed or stopped at random moments. A second job without faults, the
  twin, does as many steps in the same conditions, so all takes about twice --minutes. Both write
  checksums of every average on every rank. HERRING_* in your environment holds for both jobs.

  With --workers, one elastic job adds up whole numbers. The result of each step depends on who took
  part, so a step that was lost or made twice changes all that follows. It needs no twin.

what it reports:
  recovery    from the signal to the end of the step that was in flight
  replaced    from the signal until another process serves
  throughput  steps per second with faults, as a share of the twin's
  growth      what each process uses more at the end than at the beginning

The exit status is 0 if all is well, 1 if a step was lost, bits differ, something grew or was left
behind, and 2 for wrong usage. After a failure the files of both jobs stay, with all they said.
"""

_LEFT = Path("/dev/shm")


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring soak`."""
    command.usage = "herring soak [--minutes N] [--kill-every S] [options]"
    add = command.add_argument
    add(
        "--minutes",
        type=_positive,
        default=1.0,
        metavar="N",
        help="how long servers are killed (default 1)",
    )
    add(
        "--kill-every",
        type=argument(parse_seconds),
        default=2.0,
        metavar="S",
        help="mean time from one fault to the next (default 2s)",
    )
    add(
        "--stop-share",
        type=_share,
        default=0.0,
        metavar="P",
        help="share of the faults that stop a server instead, 0 to 1 (default 0)",
    )
    add(
        "--overlap",
        action="store_true",
        help="do not wait until all servers serve again before the next fault",
    )
    add(
        "--workers",
        action="store_true",
        help="kill workers of an elastic job instead of servers",
    )
    add("--seed", type=int, metavar="N", help="seed of the faults (default: a new one, printed)")
    add("-n", dest="ranks", type=integer, default=4, metavar="N", help="workers (default 4)")
    add("--nodes", type=integer, default=2, metavar="K", help="nodes of the workers (default 2)")
    add("--servers", type=integer, default=2, metavar="S", help="dedicated servers (default 2)")
    add(
        "--model",
        type=argument(parse_size),
        default=4_000_000,
        metavar="SIZE",
        help="bytes of the model (default 4M)",
    )
    add(
        "--most-growth",
        type=argument(parse_size),
        default=32_000_000,
        metavar="SIZE",
        help="memory that a process may use more at the end (default 32M)",
    )
    add(
        "--stall",
        type=argument(parse_seconds),
        default=60.0,
        metavar="TIME",
        help="give up if no step ends in this time (default 60s)",
    )
    add("--json", action="store_true", help="print JSON instead of a text")
    add("--plot", type=Path, metavar="FILE", help="draw step times, memory and descriptors")


def handle(options: argparse.Namespace) -> int:
    """Runs both jobs and reports; returns the exit status."""
    from herring_lab.soak.faults import Faults
    from herring_lab.soak.job import Job, Layout, SoakError
    from herring_lab.soak.judge import Outcome
    from herring_lab.soak.report import draw, lines

    _check(options)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"herring soak: seed {seed}", file=sys.stderr, flush=True)
    size = (options.ranks, options.nodes, options.servers, options.model, options.stall)
    layout = Layout(*size)
    faults = Faults(seed, options.kill_every, options.stop_share, options.overlap)
    if options.workers:
        return _soak_workers(options, layout, seed, faults)
    outcome = Outcome(seed, faults.done, [], [], [], options.most_growth)
    before = _shared_files()
    with _folder("both jobs", outcome.problems) as folder:
        try:
            (folder / "faults").mkdir()
            job = Job(layout, folder / "faults", 0, faults)
            outcome.samples = job.samples
            try:
                job.run(60 * options.minutes)
            finally:
                outcome.steps = job.steps()
            (folder / "twin").mkdir()
            twin = Job(layout, folder / "twin", outcome.count, None)
            outcome.twin = twin.run(0)
            outcome.left = [*job.left(), *twin.left()]
        except (SoakError, ValueError) as error:
            outcome.failure = str(error)
        outcome.left += _left_behind(before)
        if options.plot:
            draw(outcome, options.plot)
        _show(options, outcome.figures(), lines(outcome))
        return int(bool(outcome.problems()))


def _soak_workers(options: argparse.Namespace, layout: Layout, seed: int, faults: Faults) -> int:
    from herring_lab.soak.job import SoakError
    from herring_lab.soak.workers import ElasticJob, WorkersOutcome, read_workers

    elements = max(1, layout.size // 8)
    outcome = WorkersOutcome(seed, faults.done, layout.ranks, elements, options.most_growth)
    before = _shared_files()
    with _folder("the job", outcome.problems) as folder:
        job = ElasticJob(layout, folder, 0, faults)
        outcome.samples = job.samples
        try:
            job.run(60 * options.minutes)
        except SoakError as error:
            outcome.failure = str(error)
        outcome.steps, outcome.ended = read_workers(folder)
        outcome.left = [*job.left(), *_left_behind(before)]
        _show(options, outcome.figures(), outcome.lines())
        return int(bool(outcome.problems()))


@contextlib.contextmanager
def _folder(whose: str, problems: Callable[[], list[str]]) -> Iterator[Path]:
    """Makes a folder for jobs, and keeps it if there are problems at the end.

    After Ctrl-C it does not stay: the user has seen enough.
    """
    folder = Path(tempfile.mkdtemp(prefix="hsoak-", dir="/tmp"))  # short: sockets lie in it
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the job ends, too
    failed = True
    try:
        yield folder
        failed = bool(problems())
    except KeyboardInterrupt:
        failed = False
        raise
    finally:
        if failed:
            print(f"herring soak: the files of {whose} are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)


def _show(options: argparse.Namespace, figures: dict[str, Any], said: Sequence[str]) -> None:
    if options.json:
        json.dump({**figures, "provenance": provenance(options)}, sys.stdout, indent=2)
        print()
    else:
        print(*said, sep="\n")


def _check(options: argparse.Namespace) -> None:
    if options.workers:
        if options.plot:
            raise ConfigurationError("--plot is for soaks of servers: leave out --workers")
        return
    if options.servers < 1:
        raise ConfigurationError("--servers 0 leaves nobody to kill: at least 1 is needed")
    if options.servers == 1 and options.nodes < 2:
        raise ConfigurationError(
            "--servers 1 with --nodes 1 leaves nobody to stand in: use --servers 2"
        )
    if options.plot:
        import importlib.util

        if importlib.util.find_spec("matplotlib") is None:
            raise ConfigurationError("--plot needs matplotlib: pip install matplotlib")


def _shared_files() -> set[Path]:
    return {path for path in _LEFT.glob("*") if "herring" in path.name} if _LEFT.is_dir() else set()


def _left_behind(before: set[Path]) -> list[str]:
    return [str(path) for path in sorted(_shared_files() - before)]


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to 1")
    return value
