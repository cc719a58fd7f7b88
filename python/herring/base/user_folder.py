"""The folder in which a user's jobs meet and can be asked for their status, and who can enter it.

It is ``herring`` in ``XDG_RUNTIME_DIR``, else ``/tmp/herring-UID``; runtime_folder() in
src/control/status_service.cc makes it by the same rule.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

SHARED = Path("/tmp")


def own(environ: Mapping[str, str]) -> list[Path]:
    """Returns the folders that this process may make, the best one first."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    folders = [SHARED / f"herring-{os.getuid()}"]
    # The variable may be left over from another session, or from another user (sudo).
    if runtime and os.path.isdir(runtime) and os.stat(runtime).st_uid == os.getuid():
        folders.insert(0, Path(runtime) / "herring")
    return folders


def candidates(environ: Mapping[str, str]) -> list[Path]:
    """Returns the folders that a process of this user may have made, in any environment.

    A scheduler, for example, may have started it with other variables than this process has.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    found = [Path(runtime) / "herring"] if runtime.startswith("/") else []
    user = os.getuid()
    found += [Path(f"/run/user/{user}/herring"), SHARED / f"herring-{user}"]
    return list(dict.fromkeys(found))


def is_private(folder: Path) -> bool:
    """Returns whether only this user can enter a folder; raises OSError if there is none."""
    status = os.lstat(folder)  # does not follow a link that somebody else has made
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & 0o077
