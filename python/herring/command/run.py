"""`herring run`: its options, and the job that they describe."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from herring.base.units import argument, parse_seconds
from herring.command import horovodrun
from herring.command.options import add_hosts, add_settings
from herring.errors import ConfigurationError
from herring.launch import hosts
from herring.launch.discovery import OPTION, Discovery
from herring.launch.launcher import run
from herring.launch.options import Elastic, RunOptions, SshOptions
from herring.launch.output import open_standard_descriptors
from herring.lobby.notice import Notice
from herring.rendezvous.settings import value_of
from herring.terminal.command_line import integer

HELP = """\
examples:
  herring run -n 4 -- python train.py --epochs 3
      four workers on this machine; their sums go through shared memory

  herring run -n 4 --nodes 2 --servers 2 -- python train.py
      the same script as if on a cluster: two simulated nodes of two workers each, and two dedicated
      servers that average between them

  herring run -n 8 --nodes 8 --timeout 600 -- python -m herring.bench allreduce
      eight nodes of one worker each; without --servers each node starts a colocated server

  herring run --elastic --min-workers 3 -n 4 -- python train.py
      goes on when workers die, as long as three are left; starts them again, and takes them in.
      With --notice SIGTERM, a worker that a scheduler sends this signal leaves between two steps

  herring run -H host1:4,host2:4 -- python train.py
      eight workers on two hosts, by ssh. Each host needs this Python with Herring, and this working
      directory; 'ssh host1 true' must work without a password

  herring run -n 8 -H host1:4,host2:4,host3,host4 --servers 2 -- python train.py
      the same, with dedicated servers on the remaining hosts, host3 and host4

what the workers get:
  HERRING_RANK, HERRING_SIZE, HERRING_LOCAL_RANK, HERRING_LOCAL_SIZE, HERRING_RENDEZVOUS and a
  secret, a new one or that of HERRING_SECRET_FILE; and the variables of torchrun (RANK, WORLD_SIZE,
  LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so that
  scripts for it run unchanged.
  PYTHONUNBUFFERED=1 and OMP_NUM_THREADS (this machine's cores divided by the workers) are set
  unless you set them. Rank 0, or that of --stdin, reads this command's input if it runs on this
  machine. A terminal is read with --stdin only. Other hosts get, besides what is set there, the
  working directory, PATH, LD_LIBRARY_PATH, PYTHONPATH, PYTHONHOME, VIRTUAL_ENV, CONDA_*,
  PYTHONUNBUFFERED, OMP_NUM_THREADS, HERRING_* and what -x names. The job's secret goes through
  ssh's input, never into a command line.

how it ends:
  The exit status is 0 if all workers end with 0. If a worker fails, this command names it, stops
  what is left of the others after half a second, and exits with its status; if several fail, the
  last line names the one that failed first. The status is 128 + signal if a signal ended the
  worker, 124 after --timeout, 3 with --require-init, and 255 if a host cannot be reached (within
  --start-timeout) or is lost.
  Ctrl-C, SIGTERM and SIGHUP are passed on to the workers; a second Ctrl-C kills them. Everything
  that the workers started ends with the job, on every host, even if this command or its ssh is
  killed.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring run`."""
    command.usage = "herring run [-n N] [-H HOSTS] [--servers S] [options] -- COMMAND [ARG ...]"
    add = command.add_argument
    add_settings(command, "size")
    command.set_defaults(size=None)  # with -H: all slots
    add(
        "--nodes",
        type=integer,
        default=RunOptions.nodes,
        metavar="K",
        help="treat the workers of this machine as K nodes (default 1) of consecutive ranks",
    )
    add_settings(command, "servers")
    add("--timeout", type=_time, metavar="TIME", help="end the job after this time: 90, 30m, 2h")
    add(
        "--grace",
        type=_time,
        default=RunOptions.grace,
        metavar="TIME",
        help="time between SIGTERM and SIGKILL when the job is stopped (default 10s)",
    )
    add("--no-prefix", action="store_true", help="do not prefix output lines with the rank")
    add(
        "--stdin",
        type=integer,
        metavar="RANK",
        help="the rank that reads this command's input, which may be a terminal, as for pdb "
        "(default: rank 0, but no terminal)",
    )
    add(
        "--keep-going", action="store_true", help="let the other workers go on after one has failed"
    )
    add(
        "--require-init",
        action="store_true",
        help="fail with status 3 if a worker ends without having called herring.init()",
    )
    add_settings(command, "timeline", "label")
    add(
        "--elastic",
        action="store_true",
        help="go on without workers that die, and start them again (herring.elastic.run)",
    )
    add(
        "--min-workers",
        type=integer,
        metavar="M",
        help="with --elastic: the fewest workers that go on (default 1)",
    )
    add(
        *("--max-workers", "--max-np", "--max-num-proc"),
        type=integer,
        metavar="M",
        help="with --elastic: the most workers that take part (default: -n). With -H, as many are "
        "started as there are slots for",
    )
    add(
        "--restarts",
        type=integer,
        metavar="N",
        help="with --elastic: how often in a row a process that dies within a minute is started "
        f"again (default {Elastic.restarts})",
    )
    add(
        "--wait",
        type=_time,
        metavar="TIME",
        help="with --elastic: how long it waits for enough workers (default "
        f"{Elastic.patience:g}s)",
    )
    add_settings(command, "notice")
    add_hosts(command)
    horovodrun.add_options(command)
    add("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each worker runs")


def _settings(options: argparse.Namespace) -> list[str]:
    """Returns assignments for the options that the programs read from their environment."""
    given = {
        "HERRING_TIMELINE": options.timeline,
        "HERRING_LABEL": options.label,
        "HERRING_NOTICE": options.notice,
    }
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def _discovery(options: argparse.Namespace) -> Discovery | None:
    """Returns the script that names the hosts, or None.

    Raises:
        ConfigurationError: Hosts are given in another way, too; or slots without a script.
    """
    script, slots = options.host_discovery_script, options.slots_per_host
    if script is None:
        if slots is not None:
            raise ConfigurationError(
                f"--slots-per-host is for hosts of {OPTION}; with -H, put the slots after each "
                "host: -H host1:4,host2:4"
            )
        return None
    for flag, value in ("-H", options.hosts), ("--hostfile", options.hostfile):
        if value is not None:
            raise ConfigurationError(f"{OPTION} and {flag}: give only one of them")
    if slots is not None:
        hosts.require_range("--slots-per-host", slots, 1, 1 << 20)
    return Discovery(script, slots or 1)


def _elastic(options: argparse.Namespace, discovery: Discovery | None = None) -> Elastic | None:
    given = {
        "--min-workers": ("least", options.min_workers),
        "--max-workers": ("most", options.max_workers),
        "--restarts": ("restarts", options.restarts),
        "--wait": ("patience", options.wait),
        "--reset-limit": ("resets", options.reset_limit),
        "--notice": ("", options.notice),  # for the workers
    }
    chosen = {name: value for name, value in given.values() if name and value is not None}
    if discovery is not None:
        # As with horovodrun, the script makes a job elastic, which needs as many workers as -n.
        options.elastic, chosen = True, {"least": options.size or 1, **chosen}
    if options.elastic:
        if options.notice is None:
            Notice.parse(value_of(os.environ, "HERRING_NOTICE"))
        else:
            Notice.parse(options.notice, "--notice")
        return Elastic(**chosen, discovery=discovery)
    for flag, (_, value) in given.items():
        if value is not None:
            raise ConfigurationError(f"{flag} is for elastic jobs: give --elastic, too")
    return None


def _workers(options: argparse.Namespace, listed: tuple[hosts.Host, ...]) -> int | None:
    """Returns how many workers are started; None means all slots. Checks it against the limits."""
    most = options.max_workers
    if most is None:
        return None if options.host_discovery_script is not None else options.size
    hosts.require_range("--max-workers", most, options.size or 1, 1 << 20)
    slots = sum(host.slots for host in listed)
    if not listed or (options.size or 0) > slots:  # the latter is refused
        return options.size
    return min(most, slots)


def handle(options: argparse.Namespace) -> int:
    """Runs the job; returns the exit status."""
    open_standard_descriptors()
    command = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    discovery = _discovery(options)
    elastic = _elastic(options, discovery)
    if discovery is None or elastic is None:
        listed = hosts.read_hosts(options.hosts, options.hostfile)
    else:
        listed = discovery.first(options.size or 1, elastic.patience)
    ssh = options.ssh or value_of(os.environ, "HERRING_SSH")
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ConfigurationError(f"--ssh-command {ssh}: {error}") from None
    return run(
        RunOptions(
            command=command,
            layout=hosts.lay_out(listed, _workers(options, listed), options.servers),
            nodes=options.nodes,
            timeout=options.timeout,
            grace=options.grace,
            prefix=not options.no_prefix,
            prefix_time=options.prefix_output_with_timestamp,
            keep_going=options.keep_going,
            require_init=options.require_init,
            start_timeout=options.connect_timeout,
            stdin=options.stdin,
            output=options.output_filename,
            horovod=options.as_horovod,
            interface=options.interface,
            elastic=elastic,
            assignments=[*horovodrun.assignments(options), *_settings(options), *options.env],
            ssh=SshOptions(
                command=words,
                port=options.ssh_port,
                identity=options.ssh_identity_file,
                python=options.remote_python or sys.executable,
            ),
        )
    )


def _time(text: str) -> float:
    return argument(lambda given: parse_seconds(given, zero=True))(text)
