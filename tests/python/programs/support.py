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


def server_process() -> int:
    """Returns the process of a dedicated server of this job, which `herring run` has started."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/environ", "rb") as file:
                same = f"HERRING_JOB={os.environ['HERRING_JOB']}".encode() in file.read()
        except OSError:
            continue
        if same and b"server" in words:
            return int(name)
    raise AssertionError("no server found")


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
