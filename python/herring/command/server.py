"""`herring server`: runs a dedicated server for one job, or for one job after another."""

from __future__ import annotations

import argparse

from herring.command.options import add_settings
from herring.launch.server import run_server

HELP = """\
example: a worker on each of two hosts, and a server on a third
  (umask 077; openssl rand -hex 32 > $HOME/secret)    # once; copy it to every host, mode 0600
  export HERRING_RENDEZVOUS=host1:29600 HERRING_SECRET_FILE=$HOME/secret HERRING_SERVERS=1
  host1$ HERRING_RANK=0 HERRING_SIZE=2 python train.py
  host2$ HERRING_RANK=1 HERRING_SIZE=2 python train.py
  host3$ herring server

Under Slurm, or in the workers' mpirun command on one host, the server finds the job without these
variables (docs/launching.md).

The server ends with the job. With --stay it waits for the next job at the same rendezvous, as a
notebook needs, or a script that calls init and shutdown more than once. For more servers, start one
on each further host.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring server`."""
    add_settings(command, "rendezvous", "interface")
    command.add_argument(
        "--stay",
        action="store_true",
        help="serve one job after another at this rendezvous, until SIGTERM or Ctrl-C",
    )
    command.add_argument(
        "--ready-file",
        metavar="FILE",
        help="create FILE when the server waits for its job, and remove it at the end",
    )


def handle(options: argparse.Namespace) -> int:
    """Runs the server; returns the exit status."""
    return run_server(options.rendezvous, options.interface, options.stay, options.ready_file)
