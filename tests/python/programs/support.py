"""Helpers that the programs share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    text: str,
    call: Callable[..., Any],
    *arguments: Any,
    **options: Any,
) -> None:
    """Asserts that the call raises `kind`, or one of several kinds, with `text` in the error."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind} for {text}")


def server_processes() -> list[int]:
    """Returns the dedicated servers of this rank's job, the first server first.

    A forked server (nursery.py) is known by its name and its parent, the launcher. /proc tells the
    command line and the job of others.
    """
    job = f"HERRING_JOB={os.environ['HERRING_JOB']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, rest = (process / "stat").read_text().rsplit(")", 1)
            forked = name.endswith("(server") and int(rest.split()[1]) == os.getppid()
            started = b"server" in (process / "cmdline").read_bytes().split(b"\0")
            if forked or (started and job in (process / "environ").read_bytes()):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def server_process() -> int:
    """Returns the process of the job's first dedicated server."""
    return server_processes()[0]


def die_once(marker: Path, leave_child: bool = False, number: int = signal.SIGKILL) -> None:
    """Sends this process a signal, unless that has happened before: `marker` is made first.

    Args:
      marker: a file of the test.
      leave_child: whether a forked child outlives this process, as a data loader's may.
      number: the signal.
    """
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    if leave_child and os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(os.getpid(), number)
