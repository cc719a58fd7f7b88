"""`herring run`: its options, and what they ask for."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from herring.command_line import integer
from herring.errors import ConfigurationError
from herring.launch import horovodrun, hosts
from herring.launch.job import RunOptions, SshOptions
from herring.launch.local import run
from herring.launch.options import add_settings
from herring.launch.output import open_standard_descriptors
from herring.rendezvous.settings import value_of
from herring.units import argument, parse_seconds

__all__ = ["add_options", "handle"]

HELP = """\
examples:
  herring run -n 4 -- python train.py --epochs 3
      four workers on this machine; their sums go through shared memory

  herring run -n 4 --nodes 2 --servers 2 -- python train.py
      the same script as on a cluster: two pretended nodes of two workers, and two dedicated
      servers that average between them

  herring run -n 8 --nodes 8 --timeout 600 -- python -m herring.bench allreduce
      eight nodes of one worker; without --servers each node starts a colocated server

  herring run -H host1:4,host2:4 -- python train.py
      eight workers on two hosts, by ssh; on each there is this Python with Herring, and this
      working directory. 'ssh host1 true' has to work without a password

  herring run -n 8 -H host1:4,host2:4,host3,host4 --servers 2 -- python train.py
      the same with dedicated servers on the hosts that are left, host3 and host4

what the workers get:
  HERRING_RANK, HERRING_SIZE, HERRING_LOCAL_RANK, HERRING_LOCAL_SIZE, HERRING_RENDEZVOUS and a
  secret of their own; and what torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
  GROUP_RANK, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so that its scripts run as they are.
  PYTHONUNBUFFERED=1 and OMP_NUM_THREADS (this machine's cores divided by the workers) are set
  unless you set them. Rank 0 reads this command's input if that is no terminal and rank 0 runs on
  this machine. Other hosts get, besides what is set there, the working directory, PATH,
  LD_LIBRARY_PATH, PYTHONPATH, PYTHONHOME, VIRTUAL_ENV, CONDA_*, PYTHONUNBUFFERED, OMP_NUM_THREADS,
  HERRING_* and what -x names. The job's secret goes through ssh's input: it is in no command line.

how it ends:
  With 0 once all workers have ended with 0. If one fails, it is named, the others are stopped, and
  its exit status is this command's; where several fail, the last line names the one that failed
  first (128 + signal if a signal ended it; 124 after --timeout; 3 with --require-init; 255
  if a host cannot be reached or is lost, which --start-timeout bounds at the start).
  Ctrl-C, SIGTERM and SIGHUP are passed on to the workers; Ctrl-C again kills. Whatever the workers
  started ends with the job, on every host, also if this command or its ssh is killed.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring run`."""
    command.usage = "herring run [-n N] [-H HOSTS] [--servers S] [options] -- COMMAND [ARG ...]"
    add_settings(command, "size")
    command.set_defaults(size=None)  # with -H all slots
    command.add_argument(
        "--nodes",
        type=integer,
        default=RunOptions.nodes,
        metavar="K",
        help="pretend that the workers of one machine stand on K nodes (default 1), in blocks",
    )
    add_settings(command, "servers")
    command.add_argument(
        "--timeout", type=_time, metavar="TIME", help="end the job after this time: 90, 30m, 2h"
    )
    command.add_argument(
        "--grace",
        type=_time,
        default=RunOptions.grace,
        metavar="TIME",
        help="time between asking processes to end and killing them (default 10s)",
    )
    command.add_argument(
        "--no-prefix", action="store_true", help="do not put the rank in front of output lines"
    )
    command.add_argument(
        "--keep-going", action="store_true", help="let the others go on after a worker has failed"
    )
    command.add_argument(
        "--require-init",
        action="store_true",
        help="a worker that ends without having called herring.init() has failed: status 3",
    )
    hosts.add_options(command)
    horovodrun.add_options(command)
    command.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run"
    )


def handle(options: argparse.Namespace) -> int:
    """Runs the job; returns the exit status."""
    open_standard_descriptors()
    command = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    listed = hosts.read_hosts(options.hosts, options.hostfile)
    ssh = options.ssh or value_of(os.environ, "HERRING_SSH")
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ConfigurationError(f"--ssh-command {ssh}: {error}") from None
    return run(
        RunOptions(
            command=command,
            layout=hosts.lay_out(listed, options.size, options.servers),
            nodes=options.nodes,
            timeout=options.timeout,
            grace=options.grace,
            prefix=not options.no_prefix,
            keep_going=options.keep_going,
            require_init=options.require_init,
            start_timeout=options.connect_timeout,
            output=options.output_filename,
            horovod=options.as_horovod,
            interface=options.interface,
            assignments=[*horovodrun.assignments(options), *options.env],
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
