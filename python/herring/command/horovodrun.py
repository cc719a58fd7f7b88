"""Options of horovodrun that `herring run` accepts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from herring.base.units import argument, parse_seconds
from herring.command.options import add_settings
from herring.errors import ConfigurationError
from herring.launch.horovod_settings import TIMELINE, WITHOUT, setting_of
from herring.terminal.command_line import integer

# Options with a counterpart: Horovod's variable, and the conversion of the value.
_TAKEN: dict[str, tuple[str, Callable[[str], str]]] = {
    "--fusion-threshold-mb": ("HOROVOD_FUSION_THRESHOLD", lambda text: str(float(text) * 2**20)),
    "--log-level": ("HOROVOD_LOG_LEVEL", str),
    "--stall-check-warning-time-seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", str),
    "--stall-check-shutdown-time-seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str),
    "--gloo-timeout-seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", str),
    "--no-stall-check": ("HOROVOD_STALL_CHECK_DISABLE", str),
}
_OWN = "the transport is Herring's own"
# Options without a counterpart, by the number of their values, and why.
_IGNORED = {
    0: {
        **dict.fromkeys(("--gloo", "--mpi", "--tcp", "--jsrun"), _OWN),
        **dict.fromkeys(("--mpi-threads-disable", "--no-mpi-threads-disable"), _OWN),
        "--stall-check": "waits are always watched (HERRING_WARN_AFTER)",
        **dict.fromkeys(
            ("--log-hide-timestamp", "--no-log-hide-timestamp"), WITHOUT["HOROVOD_LOG_TIMESTAMP"]
        ),
        "--verbose": "HERRING_LOG_LEVEL says what is logged",
        "--disable-cache": WITHOUT["HOROVOD_CACHE_CAPACITY"],
        "--log-with-timestamp": WITHOUT["HOROVOD_LOG_TIMESTAMP"],
        "--log-without-timestamp": WITHOUT["HOROVOD_LOG_TIMESTAMP"],
        **{
            f"--{no}{name}": WITHOUT[f"HOROVOD_{name.upper().replace('-', '_')}"]
            for name in (
                *("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce"),
                *("timeline-mark-cycles", "autotune"),
            )
            for no in ("", "no-")
        },
    },
    1: {
        "--cycle-time-ms": WITHOUT["HOROVOD_CYCLE_TIME"],
        "--cache-capacity": WITHOUT["HOROVOD_CACHE_CAPACITY"],
        "--num-nccl-streams": WITHOUT["HOROVOD_NUM_NCCL_STREAMS"],
        "--thread-affinity": WITHOUT["HOROVOD_THREAD_AFFINITY"],
        "--mpi-args": WITHOUT["HOROVOD_MPI_THREADS_DISABLE"],
        "--binding-args": "processes are not pinned",
        "--autotune-log-file": WITHOUT["HOROVOD_AUTOTUNE"],
        "--autotune-warmup-samples": WITHOUT["HOROVOD_AUTOTUNE"],
        "--autotune-steps-per-sample": WITHOUT["HOROVOD_AUTOTUNE"],
        "--autotune-bayes-opt-max-samples": WITHOUT["HOROVOD_AUTOTUNE"],
        "--autotune-gaussian-process-noise": WITHOUT["HOROVOD_AUTOTUNE"],
    },
    2: {"--blacklist-cooldown-range": "workers that die again and again are started after pauses"},
}
_REFUSED = {
    "--slots": "put the slots after each host: -H host1:4,host2:4",
    "--config-file": "give the options on the command line; settings are HERRING_* variables",
    "--check-build": "'herring check' reports what is installed",
    "-cb": "'herring check' reports what is installed",
    "--version": "'herring --version' prints it",
}


class _Refuse(argparse.Action):
    """Rejects the option and says what to use instead."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, text: str = ""
    ) -> None:
        parser.error(f"{text} is not supported: {_REFUSED[text]}")


class _Ignore(argparse.Action):
    """Accepts an option and says why it has no meaning."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: object, values: object, text: str = ""
    ) -> None:
        """Prints a line."""
        why = next(found[text] for found in _IGNORED.values() if text in found)
        print(f"{parser.prog}: {text} has no meaning with Herring: {why}", file=sys.stderr)


class _Least(argparse.Action):
    """Makes the job elastic, and sets the fewest workers that go on."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: object, text: str = ""
    ) -> None:
        """Sets what ``--elastic --min-workers`` sets."""
        namespace.elastic, namespace.min_workers = True, values


class _Take(argparse.Action):
    """Makes the corresponding setting, for all workers and servers."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: object, text: str = ""
    ) -> None:
        """Appends ``NAME=VALUE`` to ``namespace.horovod_settings``."""
        given = "1" if self.nargs == 0 else str(values)
        variable, convert = _TAKEN[text]
        try:
            name, value = setting_of(variable, convert(given))
        except (ConfigurationError, ValueError) as error:
            allowed = str(error).partition("allowed is ")[2] or "a number"
            parser.error(f"{text} {given!r} is not valid: allowed is {allowed}")
        if value:
            # A new list: parsers would share a list that is the default.
            before = getattr(namespace, "horovod_settings", ())
            namespace.horovod_settings = [*before, f"HERRING_{name.upper()}={value}"]


def add_options(run: argparse.ArgumentParser) -> None:
    """Adds the options to the parser of `herring run`."""
    options = run.add_argument_group("options of horovodrun")
    add_settings(options, "connect_timeout", "as_horovod")
    options.add_argument(
        "--output-filename",
        metavar="FOLDER",
        type=Path,
        help="also write what each rank prints to FOLDER/rank.N/stdout and stderr",
    )
    options.add_argument(
        *("-prefix-timestamp", "--prefix-output-with-timestamp"),
        action="store_true",
        help="begin each line of output with the time",
    )
    options.add_argument(
        "--timeline-filename",
        metavar="FILE",
        help="timeline of all ranks and servers, which rank 0 writes (HOROVOD_TIMELINE)",
    )
    options.add_argument(
        *("--min-np", "--min-num-proc"),
        action=_Least,
        type=integer,
        metavar="M",
        help="--elastic --min-workers M",
    )
    options.add_argument(
        "--elastic-timeout",
        dest="wait",
        type=argument(lambda text: parse_seconds(text, zero=True)),
        metavar="TIME",
        help="--wait TIME",
    )
    options.add_argument(
        "--reset-limit",
        type=integer,
        metavar="N",
        help="with --elastic: how often the job may begin anew because workers have gone or come",
    )
    options.add_argument(
        "--host-discovery-script",
        metavar="SCRIPT",
        help="an elastic job on the hosts that this command prints, one 'host:slots' a line; it is "
        "called every second, and workers come and go with the hosts",
    )
    options.add_argument(
        "--slots-per-host",
        type=integer,
        metavar="N",
        help="slots of hosts that the script names without a number (default 1)",
    )
    for count, found in _IGNORED.items():
        for name in found:
            number = None if count == 1 else count  # with 1, argparse would make a list of it
            options.add_argument(name, nargs=number, action=_Ignore, help=argparse.SUPPRESS)
    for name in _TAKEN:
        number = 0 if name == "--no-stall-check" else None
        options.add_argument(name, nargs=number, action=_Take, help=argparse.SUPPRESS)
    for name in _REFUSED:
        options.add_argument(name, nargs="?", action=_Refuse, help=argparse.SUPPRESS)


def assignments(options: argparse.Namespace) -> list[str]:
    """Returns what the options set as ``NAME=VALUE``, before the variables that -x names."""
    found = list(getattr(options, "horovod_settings", ()))
    if options.timeline_filename is not None:
        found.append(f"{TIMELINE}={options.timeline_filename}")
    return found
