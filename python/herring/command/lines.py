"""The lines that `herring check` reports, and the short jobs that it starts."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence

from herring.launch.commands import module_command

_SHOWN_LINES = 12


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of the report."""

    name: str  # what was examined
    value: str  # what was found
    verdict: str = "ok"  # ``ok``, ``note`` (works, with a limit worth knowing) or ``fail``
    advice: str = ""  # what the user can do; empty for ``ok``


def run_job(
    options: Sequence[str],
    command: Sequence[str],
    seconds: int,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command on each rank of a job on this machine.

    Args:
        variables: Variables that the job's environment has besides those of this process.

    Returns:
        The job's exit status, and everything that it printed in ``stdout``.
    """
    herring = module_command("herring.command.cli")
    limits = ["--timeout", str(seconds), "--grace", "2"]
    return subprocess.run(
        [*herring, "run", *options, *limits, "--", *command],
        env={**os.environ, **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def last_lines(text: str) -> str:
    """Returns the last lines of an output that are not blank, for a line's advice."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:])
