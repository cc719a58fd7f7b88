"""Horovod's calls that write a timeline, by means of Herring's."""

from __future__ import annotations

import os
from pathlib import Path

import herring
from herring.errors import InvalidArgumentError


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts to write a timeline.

    Rank 0 writes a Chrome trace of all ranks and servers (for https://ui.perfetto.dev or
    ``chrome://tracing``) until `stop_timeline`, or until the job ends. Other ranks do nothing.
    Herring has no negotiation phase to show.

    Args:
      file_path: path of the trace file; its folder must exist.
      mark_cycles: ignored, as Herring has no cycles.

    Raises:
      InvalidArgumentError: the folder does not exist, or a timeline is being recorded already.
      ConfigurationError: the file cannot be written, or the job is not observed
        (``HERRING_OBSERVE``).
      ShutdownError: `init` has not been called.
    """
    del mark_cycles
    path = Path(file_path)
    if herring.rank() != 0:
        return
    if not path.absolute().parent.is_dir():
        raise InvalidArgumentError(f"start_timeline({str(path)!r}): the folder does not exist")
    herring.start_timeline(path)


def stop_timeline() -> None:
    """Completes the timeline. Does nothing if no timeline is being recorded."""
    if herring.is_initialized():
        herring.stop_timeline()
