"""Runs programs one after the other in one job, because importing torch takes most of their time.

Usage: python in_turn.py [--report FILE] PROGRAM ...

Each PROGRAM is the path of a file and its arguments, as a shell would read them. Every rank imports
torch and herring.torch once, and then forks a process for each program. When a program has ended
well on all ranks, rank 0 adds it to FILE. The first one that fails on a rank ends the job.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401  (torch itself loads it for the first optimizer)

import herring.torch
from forked import fork


def run(words: list[str], title: str, report: Path) -> None:
    """Runs a program in this process, and records that it has ended well on all ranks."""
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    herring.init()  # a job of its own, in which the ranks wait for each other
    herring.barrier()
    if herring.rank() == 0:
        with report.open("a") as file:
            file.write(f"{title}\n")
    herring.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--report", type=Path, default=Path("/dev/null"))
    arguments = parser.parse_args()
    for title in arguments.programs:
        child = fork(lambda title=title: run(shlex.split(title), title, arguments.report))
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"{title}: exit status {os.waitstatus_to_exitcode(status)}")


main()
