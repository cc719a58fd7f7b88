"""Temporary folders of the laboratory, which can be removed when their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import stat
import tempfile
from collections.abc import Iterator

_PREFIXES = ("herring-lab-", "herring-mpi-", "herring-study-")


@contextlib.contextmanager
def temporary(purpose: str) -> Iterator[str]:
    """Makes a folder that the end of the context removes; gives its path.

    Args:
      purpose: ``lab``, ``mpi`` or ``study``: the folder's name begins with ``herring-PURPOSE-``.
    """
    while True:
        path = tempfile.mkdtemp(prefix=f"herring-{purpose}-")
        # The lock ends with this process, however that ends.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(path):  # `remove_left` may have taken it for a folder without owner
                break
            os.close(lock)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_left() -> list[str]:
    """Removes this user's folders whose processes died without doing so; returns their paths."""
    removed = []
    for path in pathlib.Path(tempfile.gettempdir()).iterdir():
        if not path.name.startswith(_PREFIXES):
            continue
        try:
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it has gone meanwhile
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(str(path))
        finally:
            os.close(lock)
    return removed
