"""`herring rendezvous`: the lobby of an elastic job that several launchers or none have started."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys

from herring.base.units import argument, parse_seconds
from herring.command.options import add_settings
from herring.elastic.running import secret_of
from herring.errors import ConfigurationError
from herring.launch.options import Elastic
from herring.lobby.generations import Rules
from herring.lobby.service import Lobby
from herring.rendezvous.detect import parse_address
from herring.rendezvous.endpoint import listen, resolve, within_reach
from herring.rendezvous.publication import Wait
from herring.terminal.command_line import integer, log_line

HELP = """\
example: two workers to begin with, on two hosts, and one that comes later
  (umask 077; openssl rand -hex 32 > $HOME/secret)    # once; copy it to every host, mode 0600
  export HERRING_SECRET_FILE=$HOME/secret
  host0$ herring rendezvous --listen host0:29700 -n 2
  host1$ HERRING_ELASTIC=host0:29700 HERRING_RANK=0 python train.py
  host2$ HERRING_ELASTIC=host0:29700 HERRING_RANK=1 python train.py
  host3$ HERRING_ELASTIC=host0:29700 HERRING_RANK=2 python train.py

train.py uses herring.elastic.run. 'herring run --elastic' has such a lobby inside, and starts
workers again that die; this command is for workers that a cluster manager starts. Dedicated servers
join with 'HERRING_ELASTIC=host0:29700 herring server'.

The lobby is needed when workers come or die, not while they train. If it ends, start it again at
the same address: the workers connect again within seconds, and tell it who is in the job. It ends
with SIGTERM or Ctrl-C, or when too few workers are left.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring rendezvous`."""
    add = command.add_argument
    add(
        "--listen",
        metavar="HOST:PORT",
        default=None,
        help="where it listens, as in HERRING_ELASTIC (default: HERRING_ELASTIC)",
    )
    add_settings(command, "size", "servers")
    add(
        "--min-workers",
        type=integer,
        default=1,
        metavar="M",
        help="the fewest workers that go on (default 1)",
    )
    add("--max-workers", type=integer, metavar="M", help="the most workers that it takes")
    add(
        "--wait",
        type=argument(lambda text: parse_seconds(text, zero=True)),
        default=Elastic.patience,
        metavar="TIME",
        help=f"how long it waits for enough workers (default {Elastic.patience:g}s)",
    )


def handle(options: argparse.Namespace) -> int:
    """Serves the lobby until it is told to end; returns the exit status."""
    most = Rules.most if options.max_workers is None else options.max_workers
    if not 1 <= options.min_workers <= options.size <= most:
        raise ConfigurationError(
            f"--min-workers {options.min_workers}, -n {options.size} and --max-workers {most} are "
            "not valid: each must be at least the one before, and 1"
        )
    place = options.listen or os.environ.get("HERRING_ELASTIC", "").strip()
    if not place:
        raise ConfigurationError("give --listen HOST:PORT, or set HERRING_ELASTIC")
    where = "--listen" if options.listen else "HERRING_ELASTIC"
    host, port = parse_address(place, where)
    wait = Wait("the lobby", 10.0, 5.0)
    resolved = resolve(host, where, os.environ, wait)
    seen = within_reach(host, resolved, os.environ)
    listener = listen(host, resolved, seen, port, where)
    rules = Rules(options.size, options.servers, options.min_workers, most, options.wait)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    lobby = Lobby(listener, secret_of(os.environ), rules, _say)
    with contextlib.closing(lobby):
        _say("info", f"the lobby of an elastic job listens at {lobby.address}")
        return 1 if lobby.wait() else 0


def _say(level: str, text: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(log_line(level, "herring rendezvous", text))
        sys.stderr.flush()
