"""What `herring check` reports, and the short jobs that it starts to find out."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Mapping, Sequence

from herring.launch.commands import module_command

__all__ = ["Finding", "last_lines", "run_job"]

_SHOWN_LINES = 12


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: What was looked at.
        value: What was found.
        verdict: ``ok``, ``note`` (works, with a limit worth knowing) or ``fail``.
        advice: What to do about it; empty for ``ok``.
    """

    name: str
    value: str
    verdict: str = "ok"
    advice: str = ""


def run_job(
    options: Sequence[str],
    command: Sequence[str],
    seconds: int,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command on each rank of a job on this machine.

    Args:
        options: Of `herring run`, for the layout.
        command: What each rank runs.
        seconds: After which the job is ended.
        variables: That its environment has besides those of this process.

    Returns:
        The job's exit status, and in ``stdout`` all that it has printed.
    """
    herring = module_command("herring.launch.cli")
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
    """The last lines of an output that are not blank, for a finding's advice."""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_SHOWN_LINES:])
