"""The `herring` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence

from herring.command_line import EXIT_USAGE, Parser, guarded, integer
from herring.errors import ConfigurationError, HerringError
from herring.launch import horovodrun, hosts
from herring.parts import missing_part
from herring.units import argument, parse_seconds
from herring.version import version

__all__ = ["main", "version"]

_RUN_HELP = """\
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

_SERVER_HELP = """\
example, two hosts with a worker each and a third with the server:
  openssl rand -hex 32 > secret            # once; copy it to every host, mode 0600
  export HERRING_RENDEZVOUS=host1:29600 HERRING_SECRET_FILE=secret HERRING_SERVERS=1
  host1$ HERRING_RANK=0 HERRING_SIZE=2 python train.py
  host2$ HERRING_RANK=1 HERRING_SIZE=2 python train.py
  host3$ herring server

Beside the workers under Slurm, or in their line of mpirun on one host, the server finds the job
without these variables (docs/launching.md).

The server ends with the job; with --stay it waits for the next one at the same rendezvous (a
notebook, or a script that calls init and shutdown more than once). With more servers, start one on
each further host.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the `herring` command.

    Args:
        arguments: What follows ``herring``; ``sys.argv[1:]`` by default.

    Returns:
        The exit status: 2 for wrong usage or configuration, else what the subcommand gives.
    """
    return guarded(lambda: _main(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    words = {"help": "--help", "version": "--version"}
    if arguments[:1] and arguments[0] in words:
        arguments = [*arguments[1:], words[arguments[0]]]
    subcommand = ""
    try:
        options = _parser().parse_args(arguments)
        subcommand = f" {options.subcommand}"
        return int(options.handler(options))
    except ModuleNotFoundError as error:
        if not (missing := missing_part(error)):
            raise
        print(f"herring{subcommand}: {missing}", file=sys.stderr)
        return EXIT_USAGE
    except ConfigurationError as error:
        print(f"herring{subcommand}: {error}", file=sys.stderr)
        return getattr(error, "status", EXIT_USAGE)
    except HerringError as error:
        print(f"herring{subcommand}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        if "_core" not in str(error):
            raise
        print(
            f"herring{subcommand}: the extension module herring._core is missing "
            f"({error}): install the package ('pip install .' or 'make build')",
            file=sys.stderr,
        )
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="herring",
        usage="herring [-h] [-V] COMMAND ...",
        description="Averages gradients through parameter servers.",
        epilog="'herring COMMAND --help' or 'herring help COMMAND' explains each with examples.",
    )
    parser.add_argument("-V", "--version", action=_Version)
    commands = parser.add_subparsers(
        prog="herring", dest="subcommand", metavar="COMMAND", required=True, parser_class=Parser
    )

    run = _command(commands, "run", "run a job on this machine, or others", _RUN_HELP, _run)
    run.usage = "herring run [-n N] [-H HOSTS] [--servers S] [options] -- COMMAND [ARG ...]"
    run.add_argument(
        *("-n", "--workers", "-np", "--num-proc"),
        type=integer,
        dest="workers",
        metavar="N",
        help="workers (default 1)",
    )
    run.add_argument(
        "--nodes",
        type=integer,
        default=1,
        metavar="K",
        help="pretend that the workers of one machine stand on K nodes (default 1), in blocks",
    )
    run.add_argument(
        "--servers", type=integer, default=0, metavar="S", help="dedicated servers (default 0)"
    )
    run.add_argument(
        "--timeout", type=_time, metavar="TIME", help="end the job after this time: 90, 30m, 2h"
    )
    run.add_argument(
        "--grace",
        type=_time,
        default=10.0,
        metavar="TIME",
        help="time between asking processes to end and killing them (default 10s)",
    )
    run.add_argument(
        "--no-prefix", action="store_true", help="do not put the rank in front of output lines"
    )
    run.add_argument(
        "--keep-going", action="store_true", help="let the others go on after a worker has failed"
    )
    run.add_argument(
        "--require-init",
        action="store_true",
        help="a worker that ends without having called herring.init() has failed: status 3",
    )
    hosts.add_options(run)
    horovodrun.add_options(run)
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run")

    server = _command(
        commands, "server", "run a dedicated server until its job ends", _SERVER_HELP, _server
    )
    server.add_argument(
        "--rendezvous",
        metavar="HOST:PORT",
        help="where the job's rank 0 listens (default: HERRING_RENDEZVOUS, else what Slurm or "
        "mpirun tell)",
    )
    server.add_argument(
        "--interface",
        metavar="NAME",
        help="interface or address to serve on (default: HERRING_INTERFACE, else the one that "
        "leads to the rendezvous)",
    )
    server.add_argument(
        "--stay",
        action="store_true",
        help="serve job after job at this rendezvous, until SIGTERM or Ctrl-C",
    )
    server.add_argument(
        "--ready-file",
        metavar="FILE",
        help="make FILE once the server waits for its job, and remove it at the end",
    )

    config = _command(
        commands, "config", "print every setting with its value, origin and meaning", "", _config
    )
    config.usage = "herring config [--json] [NAME ...]"
    config.add_argument("--json", action="store_true", help="print JSON instead of a table")
    config.add_argument("name", nargs="*", help="only settings whose name contains this")

    check = _command(
        commands,
        "check",
        "tell what this machine has, and try a small all-reduce",
        "",
        _check,
    )
    check.add_argument("--json", action="store_true", help="print JSON instead of a table")
    check.add_argument("--no-run", action="store_true", help="do not try an all-reduce")

    kubernetes = _command(
        commands, "kubernetes", "write a manifest of a job with servers", "", _kubernetes
    )
    kubernetes.fill = _fill_kubernetes
    lab = _command(commands, "lab", "emulate a cluster on this machine (needs root)", "", _lab)
    lab.fill = _fill_lab
    study = _command(commands, "study", "measure algorithms and peers in the lab", "", _study)
    study.fill = _fill_study
    simulate = _command(
        commands, "simulate", "tell how long steps would take on a network", "", _simulate
    )
    simulate.fill = _fill_simulate
    return parser


class _Version(argparse.Action):
    """Prints the version, which takes a while to find out."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"herring {version()}")
        parser.exit()


def _fill_kubernetes(command: argparse.ArgumentParser) -> None:
    from herring.launch.kubernetes import HELP, add_options

    command.epilog = HELP
    add_options(command)


def _fill_lab(command: argparse.ArgumentParser) -> None:
    from herring.lab.cli import HELP, add_commands

    command.epilog = HELP
    command.usage = "herring lab COMMAND [options]"
    add_commands(command)


def _fill_study(command: argparse.ArgumentParser) -> None:
    from herring.study.cli import HELP, add_options

    command.epilog = HELP
    command.usage = "herring study [EXPERIMENT ...] [options]"
    add_options(command)


def _fill_simulate(command: argparse.ArgumentParser) -> None:
    from herring.simulate.options import HELP, add_options

    command.epilog = HELP
    add_options(command)


def _command(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    text: str,
    epilog: str,
    handler: Callable[[argparse.Namespace], int],
) -> Parser:
    command = commands.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        usage=f"herring {name} [options]",
    )
    command.set_defaults(handler=handler)
    return command


def _time(text: str) -> float:
    return argument(lambda given: parse_seconds(given, zero=True))(text)


def _run(options: argparse.Namespace) -> int:
    from herring.launch.job import RunOptions, SshOptions
    from herring.launch.local import run
    from herring.launch.output import open_standard_descriptors

    open_standard_descriptors()
    command = options.command
    if command[:1] == ["--"]:
        command = command[1:]
    listed = hosts.read_hosts(options.hosts, options.hostfile)
    ssh = options.ssh_command or os.environ.get("HERRING_SSH", "").strip() or "ssh"
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ConfigurationError(f"--ssh-command {ssh}: {error}") from None
    return run(
        RunOptions(
            command=command,
            layout=hosts.lay_out(listed, options.workers, options.servers),
            nodes=options.nodes,
            timeout=options.timeout,
            grace=options.grace,
            prefix=not options.no_prefix,
            keep_going=options.keep_going,
            require_init=options.require_init,
            start_timeout=options.start_timeout,
            output=options.output_filename,
            horovod=options.horovod,
            interface=options.network_interface,
            assignments=[*horovodrun.assignments(options), *options.env],
            ssh=SshOptions(
                command=words,
                port=options.ssh_port,
                identity=options.ssh_identity_file,
                python=options.remote_python or sys.executable,
            ),
        )
    )


def _server(options: argparse.Namespace) -> int:
    from herring.launch.server import run_server

    return run_server(options.rendezvous, options.interface, options.stay, options.ready_file)


def _config(options: argparse.Namespace) -> int:
    from herring.launch.config import show

    return show(options.name, as_json=options.json)


def _check(options: argparse.Namespace) -> int:
    from herring.launch.check import check

    return check(as_json=options.json, try_run=not options.no_run)


def _kubernetes(options: argparse.Namespace) -> int:
    from herring.launch.kubernetes import handle

    return handle(options)


def _lab(options: argparse.Namespace) -> int:
    from herring.lab.cli import handle

    return handle(options)


def _study(options: argparse.Namespace) -> int:
    from herring.study.cli import handle

    return handle(options)


def _simulate(options: argparse.Namespace) -> int:
    from herring.simulate.cli import handle

    return handle(options)


if __name__ == "__main__":
    sys.exit(main())
