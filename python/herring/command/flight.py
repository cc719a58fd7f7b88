"""`herring flight`: says from a flight record who waited for whom."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from herring.base.provenance import writing
from herring.base.units import ranks_text
from herring.errors import ConfigurationError
from herring.flight import report, torch_format
from herring.flight.analysis import analyse
from herring.flight.record import read
from herring.flight.trace import as_trace

HELP = """\
examples:
  herring flight herring-flight.json
  herring flight herring-flight.json --rank 3
  herring flight herring-flight.json --torch traces && torchfrtrace traces

A job writes the file when it fails, when an operation reaches its timeout, or when
somebody asks for it. The report begins with the verdict.
"""


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of `herring flight`."""
    command.usage = "herring flight FILE [options]"
    command.add_argument("file", metavar="FILE", type=Path, help="the flight record")
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.add_argument(
        "--all", action="store_true", help="list all operations, not only those around the cause"
    )
    command.add_argument(
        "--rank", metavar="N", type=int, help="list the operations of one rank with their times"
    )
    command.add_argument(
        "--torch",
        metavar="FOLDER",
        type=Path,
        help="also write files for PyTorch's analyzer (torchfrtrace), one for each rank",
    )
    command.add_argument(
        "--trace", metavar="FILE", type=Path, help="also write a Chrome trace into this file"
    )


def handle(options: argparse.Namespace) -> int:
    """Prints the report and writes the files that were asked for.

    Returns:
        The exit status, 0.

    Raises:
        ConfigurationError: The file is not a flight record, an option does not fit it, or a file
            cannot be written.
    """
    record = read(options.file)
    if options.rank is not None and not 0 <= options.rank < record.size:
        raise ConfigurationError(
            f"--rank {options.rank} is not a rank of this job; allowed are 0 to {record.size - 1}"
        )
    analysis = analyse(record)
    notes = []
    if options.torch is not None:
        with writing(options.torch):
            written = torch_format.write(record, analysis, options.torch)
        notes.append(f"wrote {len(written)} files into {options.torch}")
        absent = [rank for rank in range(record.size) if rank not in record.ranks]
        if absent:
            notes.append(
                f"no record came from {ranks_text(absent)}: give torchfrtrace "
                "--allow-incomplete-ranks"
            )
    if options.trace is not None:
        with writing(options.trace):
            options.trace.write_text(json.dumps(as_trace(record)), encoding="utf-8")
        notes.append(f"wrote a Chrome trace into {options.trace}")
    if options.json:
        print(json.dumps(report.as_json(record, analysis), indent=2))
        return 0
    print(report.as_text(record, analysis, everything=options.all, rank=options.rank))
    for note in notes:
        print(note)
    return 0
