"""`herring doctor`: examines the hosts and links of a job, under the job's own launcher."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from herring.base.pictures import KINDS, picture_file
from herring.base.provenance import provenance
from herring.base.units import argument, parse_seconds, parse_size
from herring.command.cli import main
from herring.command.options import add_hosts
from herring.errors import ConfigurationError
from herring.launch import hosts
from herring.launch.commands import module_command
from herring.terminal.command_line import log_line
from herring.terminal.printing import print_lines

HELP = """\
examples:
  herring doctor
      examines this host

  herring doctor -H host1:4,host2:4
      examines two hosts, which it reaches by ssh as 'herring run' does

  srun -N 16 --ntasks-per-node 4 herring doctor
  mpirun -n 8 --host host1:4,host2:4 ... herring doctor
  torchrun --nnodes 2 --nproc-per-node 4 ... --no-python herring doctor
  herring run -n 8 -H host1:4,host2:4 -- herring doctor
      examine the hosts of a job with the job's launcher, variables and limits

Start it in place of 'python train.py', with the same options and variables. One rank of each host
examines it; rank 0 prints the report. Give hosts of dedicated servers a rank, too.

The exit status is 0 if there is no error, 1 if there is one, and 2 for wrong usage or
configuration.
"""

_LEAST_SECONDS = 5.0


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring doctor`."""
    command.usage = "herring doctor [-H HOSTS] [--json] [options]"
    command.add_argument("--json", action="store_true", help="print JSON instead of a text")
    command.add_argument(
        "--all", action="store_true", help="print the tables of hosts and links even if all is well"
    )
    command.add_argument(
        "--time-limit",
        type=argument(_time_limit),
        default=60.0,
        metavar="TIME",
        help="report after this time, whatever has not been measured by then (default 60s)",
    )
    command.add_argument(
        "--gradients",
        type=argument(parse_size),
        default=100_000_000,
        metavar="SIZE",
        help="bytes of a step's gradients, for the times in the report (default 100M)",
    )
    command.add_argument(
        "--curve",
        nargs="?",
        const=True,
        type=argument(lambda text: str(picture_file(text))),
        metavar="FILE",
        help="measure messages of 1 B to 16 MiB between pairs of hosts, and fit a latency and a "
        f"rate to them; rank 0 draws FILE ({', '.join(KINDS)}) if it is given",
    )
    command.add_argument("--hosts-of-ranks", help=argparse.SUPPRESS)
    add_hosts(command)


def handle(options: argparse.Namespace) -> int:
    """Examines the job; returns the exit status."""
    listed = hosts.read_hosts(options.hosts, options.hostfile)
    if listed:
        return _start(options, listed)
    for flag, given in _given(options):
        if given:
            raise ConfigurationError(f"{flag} has a meaning only with -H or --hostfile")
    from herring.doctor.examine import ExamineOptions, examine

    names = enumerate((options.hosts_of_ranks or "").split(","))
    examine_options = ExamineOptions(
        options.time_limit,
        options.gradients,
        {rank: name for rank, name in names if name},
        curve=options.curve is not None,
    )
    about = examine(examine_options)
    if about is None:
        return 0
    from herring.doctor.judge import judge, verdict
    from herring.doctor.report import lines, to_json

    findings = judge(about)
    if options.json:
        asked = {"time_limit": options.time_limit, "gradients": options.gradients}
        document = {**to_json(about, findings), "provenance": provenance(asked)}
        json.dump(document, sys.stdout, indent=2)
        print()
    else:
        print_lines([line] for line in lines(about, findings, options.all))
    if options.curve is not None and len(about.hosts) == 1:
        text = "--curve: there is one host, and so no message between hosts"
        sys.stderr.write(log_line("warning", "herring doctor", text))
    elif isinstance(options.curve, str):
        from herring.doctor.curve import draw_curves

        draw_curves(about, Path(options.curve))
    return int(verdict(findings) == "error")


def _time_limit(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds < _LEAST_SECONDS:
        raise ConfigurationError(f"{text!r} is too short: allowed are 5s or more")
    return seconds


def _given(options: argparse.Namespace) -> list[tuple[str, object]]:
    """Returns the options that only a start on several hosts has, with their values."""
    return [
        ("--env", options.env),
        ("--ssh-port", options.ssh_port),
        ("--ssh-identity-file", options.ssh_identity_file),
        ("--ssh-command", options.ssh),
        ("--remote-python", options.remote_python),
        ("--interface", options.interface),
    ]


def _start(options: argparse.Namespace, listed: tuple[hosts.Host, ...]) -> int:
    """Starts this command on the hosts by `herring run`."""
    for variable in ("HERRING_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if os.environ.get(variable):
            raise ConfigurationError(
                f"-H starts a job, but this process is a rank of one already ({variable}="
                f"{os.environ[variable]}): leave -H out under a launcher"
            )
    run = ["run", "--no-prefix", "--timeout", f"{options.time_limit + 30:g}", "--grace", "2"]
    run += ["-H", ",".join(f"{_bracketed(host.name)}:{host.slots}" for host in listed)]
    for flag, value in _given(options):
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                run += [flag, str(each)]
    python = options.remote_python or sys.executable
    doctor = [*module_command("herring.command.cli", python), "doctor"]
    doctor += ["--time-limit", f"{options.time_limit:g}", "--gradients", str(options.gradients)]
    names = [host.name.rpartition("@")[2] for host in listed for _ in range(host.slots)]
    doctor += ["--hosts-of-ranks", ",".join(names)]
    if options.curve is not None:
        doctor += ["--curve", *([options.curve] if isinstance(options.curve, str) else [])]
    doctor += [flag for flag, on in (("--json", options.json), ("--all", options.all)) if on]
    status = main([*run, "--", *doctor])
    return status if status in (0, 2, 130) else 1


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name
