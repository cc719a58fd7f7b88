"""The command ``herring lab``, which emulates a cluster on one machine."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from herring.base.units import argument, counted, parse_seconds, show_rate
from herring.errors import ConfigurationError
from herring.launch.options import resolve_command
from herring.terminal.command_line import integer
from herring_lab.emulate import folders
from herring_lab.emulate.check import check_links
from herring_lab.emulate.cluster import (
    Cluster,
    ClusterError,
    LateLinksError,
    remove_stale,
    signals_unwind,
)
from herring_lab.emulate.limits import MAXIMUM_HOSTS
from herring_lab.emulate.mpi import MPIS, require
from herring_lab.emulate.options import add_network, network_of
from herring_lab.emulate.runner import Plan, run

HELP = """\
examples:
  herring lab run --workers 8 --servers 8 --rate 200mbit --queue 20ms -- \\
      python -m herring.bench allreduce --sizes 25M
      Makes sixteen hosts with links of 200 Mbit/s each way, and runs one worker or server on each.

  herring lab run --workers 8 --rate 200mbit -- python -m herring.bench allreduce --peer gloo
      Measures another library on such hosts; the lab sets RANK, WORLD_SIZE and MASTER_ADDR.

  herring lab run --workers 8 --rate 200mbit --mpi openmpi -- python my_mpi4py_program.py
      Runs an MPI job; MPI's own launcher starts the ranks on the hosts.

  herring lab run --workers 4 --servers 2 --rate 1gbit --slow 2=100mbit -- python train.py
      Gives host 2 a slow network card.

  herring lab run --workers 4 --servers 4 --rate 200mbit --paths 4x50mbit -- ...
      Joins two leaf switches by four spines; a hash of its ports assigns each connection to one.

  herring lab run --workers 4 --servers 4 --rate 200mbit --delay 0.2ms --delay 7=10ms -- ...
      Makes strict links, on which a packet takes length / rate, with 0.2 ms of one-way delay;
      host 7 is far away.

  herring lab run --workers 4 --rate 200mbit --paths 100mbit@10ms --loss 0.1% -- ...
      Joins two sites (even and odd hosts) by a thin, long link; one packet in 1000 is lost.

  herring lab run --workers 2 --no-check -- sh -c 'echo {rank} of {size} at {address}'
      Runs any command; {rank}, {size}, {host}, {local_rank}, {address}, {addresses} and {master}
      are replaced in it.

Hosts are network namespaces, so the lab needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN), iproute2 and
util-linux. It measures the links before the command runs. If they do not reach their rate, or if
strict links deliver packets too late while the command runs, the lab says so and ends with status
3. The lab removes its hosts when it ends. Hosts of a lab that was killed are removed by the next
lab, or by 'herring lab clean', which also removes temporary folders.
"""

_EXIT_LINKS = 3
_ATTEMPTS = 3  # other programs may have used the processors meanwhile


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the commands and options of ``herring lab`` to its parser."""
    parser.usage = "herring lab COMMAND [options]"
    commands = parser.add_subparsers(
        prog="herring lab", dest="lab_command", metavar="COMMAND", required=True
    )
    for name, text in (
        ("run", "run a command as every worker on emulated hosts"),
        ("check", "make the hosts, measure their links, and remove them"),
    ):
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=HELP,
            usage=f"herring lab {name} [options]",
        )
        _add_network(command)
        if name == "run":
            _add_run(command)
    clean = commands.add_parser("clean", help="remove what killed labs and studies have left")
    clean.usage = "herring lab clean"


def _add_network(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workers", type=integer, default=2, metavar="N", help="number of workers (default 2)"
    )
    command.add_argument(
        "--servers",
        type=integer,
        default=0,
        metavar="S",
        help="number of dedicated servers (default 0)",
    )
    command.add_argument(
        "--per-host", type=integer, default=1, metavar="L", help="workers on each host (default 1)"
    )
    add_network(command)


def _add_run(command: argparse.ArgumentParser) -> None:
    command.usage = "herring lab run [options] -- COMMAND [ARG ...]"
    command.add_argument(
        "--timeout",
        type=argument(parse_seconds),
        metavar="TIME",
        help="end all processes after this time, as in 90 (seconds), 30m or 2h",
    )
    command.add_argument(
        "--mpi", choices=MPIS, default="", help="start the workers with the launcher of this MPI"
    )
    command.add_argument(
        "--no-check",
        action="store_true",
        help="do not measure the links first, and keep the exit status if strict links were late",
    )
    command.add_argument(
        "--no-prefix", action="store_true", help="do not print the rank before each line"
    )
    command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")


def handle(options: argparse.Namespace) -> int:
    """Runs ``herring lab``; returns the exit status.

    Raises:
      ConfigurationError: an option is wrong, or this machine cannot make a lab; the error says why.
    """
    try:
        if options.lab_command == "clean":
            removed, left = remove_stale(), folders.remove_left()
            found = f"{counted(len(removed), 'lab')} and {counted(len(left), 'temporary folder')}"
            print(f"removed {found} of commands that were killed")
            return 0
        return _with_cluster(options)
    except ClusterError as error:
        raise ConfigurationError(str(error)) from None


def _with_cluster(options: argparse.Namespace) -> int:
    network = network_of(options)
    plan = _plan(options)
    with signals_unwind(), Cluster(plan.hosts, **network) as cluster:
        if options.lab_command == "check" or not options.no_check:
            status = _check(cluster)
            if status != 0 or options.lab_command == "check":
                return status
        cluster.link_report(reset=True)
        return run(cluster, plan) or _late(cluster, options.no_check)


def _plan(options: argparse.Namespace) -> Plan:
    for name in ("workers", "per_host"):
        if getattr(options, name) < 1:
            text = f"--{name.replace('_', '-')} {getattr(options, name)}: at least 1 is needed"
            raise ConfigurationError(text)
    if options.servers < 0:
        raise ConfigurationError(f"--servers {options.servers}: 0 or more are needed")
    plan = Plan(_command(options), options.workers, options.servers, options.per_host)
    if plan.hosts > MAXIMUM_HOSTS:
        raise ConfigurationError(
            f"--workers {options.workers}, --servers {options.servers}, --per-host "
            f"{options.per_host}: these need {plan.hosts} hosts; a lab has at most {MAXIMUM_HOSTS}"
        )
    if options.lab_command == "check":
        if plan.hosts < 2:
            raise ConfigurationError("a single host has no link to measure: use --workers 2")
        return plan
    if options.mpi:
        require(options.mpi)
    return dataclasses.replace(
        plan, timeout=options.timeout, labels=not options.no_prefix, mpi=options.mpi
    )


def _command(options: argparse.Namespace) -> list[str]:
    if options.lab_command == "check":
        return []
    command: Sequence[str] = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise ConfigurationError(
            "no command to run: write it after '--', as in 'herring lab run --workers 4 -- "
            "python train.py'"
        )
    return resolve_command(command)


def _check(cluster: Cluster) -> int:
    if cluster.size < 2:
        return 0
    for _attempt in range(_ATTEMPTS):
        cluster.link_report(reset=True)
        links = check_links(cluster)
        print(f"herring lab: {links.text()}", file=sys.stderr, flush=True)
        slow = links.slow()
        report = cluster.link_report()
        if not slow and (report is None or report.kept_up):
            break
    for host in slow:
        print(
            f"herring lab: host {host} got {show_rate(links.bits_per_second[host])}, not "
            f"{show_rate(cluster.rate_between((host - 1) % cluster.size, host) or 0)}: this "
            "machine cannot carry such a lab now; use a lower --rate or fewer hosts, or skip "
            "this check with --no-check",
            file=sys.stderr,
        )
    if not slow:
        slow = _late(cluster, False)
    return _EXIT_LINKS if slow else 0


def _late(cluster: Cluster, anyway: bool) -> int:
    """Prints how late packets on strict links were, and returns the exit status."""
    try:
        report = cluster.require_on_time()
    except LateLinksError as error:
        print(f"herring lab: {error}", file=sys.stderr, flush=True)
        return 0 if anyway else _EXIT_LINKS
    if report is not None:
        print(f"herring lab: {report.text()}", file=sys.stderr, flush=True)
    return 0
