"""A file that rank 0 writes for the other ranks of its host, and that only this user can read.

The file is in a folder that only this user can enter: ``herring`` in ``XDG_RUNTIME_DIR``, else
``/tmp/herring-UID``. If another user has made the latter first, rank 0 makes a folder whose name
has a random end. Readers look into all of these folders, so nobody can keep a job from starting by
taking a name.

The process that wrote the file locks it (``flock``) for as long as the file is valid. A file left
behind by a crash is therefore recognized and ignored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from herring.base import proc, user_folder
from herring.base.reminders import FIRST_REMINDER, LONG_START, Reminders
from herring.base.units import in_seconds
from herring.errors import ConfigurationError, TimeoutError

_POLL_SECONDS = 0.02
_STALE_SECONDS = 3600.0


class Publication:
    """A published file, which exists until `withdraw`."""

    def __init__(self, folder: Path, key: str, content: Mapping[str, str]) -> None:
        """Writes the file.

        Args:
            key: The file's name: letters, digits, dots, underscores and hyphens.

        Raises:
            ConfigurationError: The folder is not writable, or a living process already has a file
                of this name.
        """
        self._path = folder / key
        self._fd = -1
        if _read(self._path) is not None:
            raise ConfigurationError(
                f"another job of this user is starting under the same name ({self._path}): set "
                "HERRING_JOB or HERRING_RENDEZVOUS differently for each"
            )
        draft = folder / f".{key}-{secrets.token_hex(4)}"
        try:
            _sweep(folder)
            self._fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.write(self._fd, json.dumps(dict(content)).encode())
            # Readers see the whole file or none, and the file is locked before they can see it.
            os.rename(draft, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            self.close()
            raise ConfigurationError(
                f"cannot write {self._path} ({error.strerror}): make it writable for this user, or "
                "set HERRING_RENDEZVOUS and HERRING_SECRET_FILE"
            ) from error

    def withdraw(self) -> None:
        """Removes the file. May be called more than once."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                os.unlink(self._path)
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a forked child may hold the lock too
        self.close()

    def close(self) -> None:
        """Closes the descriptor only, as in a forked child, which does not own the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def directory(environ: Mapping[str, str]) -> Path:
    """Returns the folder for this process's files, which it makes; or ConfigurationError."""
    try:
        for folder in user_folder.own(environ):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if _is_private(folder):
                return folder
        for folder in _unusual():
            return folder
        return Path(tempfile.mkdtemp(prefix=f"herring-{os.getuid()}-", dir=user_folder.SHARED))
    except OSError as error:
        raise ConfigurationError(
            f"cannot make a folder for this user in {user_folder.SHARED} ({error.strerror}): make "
            "it writable, or set HERRING_RENDEZVOUS and HERRING_SECRET_FILE"
        ) from error


def _unusual() -> Iterator[Path]:
    """Yields this user's folders with a random name."""
    prefix = f"herring-{os.getuid()}-"
    for name in sorted(os.listdir(user_folder.SHARED)):
        if name.startswith(prefix) and _is_private(user_folder.SHARED / name):
            yield user_folder.SHARED / name


def _is_private(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return user_folder.is_private(folder)
    return False


@dataclass
class Wait:
    """A wait for rank 0 that logs reminders: after a moment, then after pauses that double."""

    who: str  # who waits, for messages
    timeout: float  # seconds that the wait may take
    first_reminder: float = FIRST_REMINDER  # seconds after which the first reminder is logged
    before: float = 0.0  # seconds of an earlier wait, whose reminders have been logged
    # How long rank 0 may usually take to start, in seconds. Until then, reminders are information;
    # None means as long as this process has taken.
    start: float | None = None

    def __post_init__(self) -> None:
        if self.first_reminder < FIRST_REMINDER:  # HERRING_WARN_AFTER wants early warnings
            self._usual = 0.0
        else:
            self._usual = min(proc.age() if self.start is None else self.start, LONG_START)
        self._start = time.monotonic()
        self._reminders = Reminders(self._start - self.before, self.first_reminder, now=self._start)

    def goes_on(self, what: str) -> bool:
        """Returns whether there is time left to wait for rank 0 to do `what`; logs reminders."""
        now = time.monotonic()
        if self._reminders.due(now):
            from herring import _core  # the launcher does not need the core

            waited = now - self._reminders.since
            log = _core.log_info if waited < self._usual else _core.log_warning
            log(f"{self.who} has waited {in_seconds(waited)} for rank 0 to {what}")
        return now - self._start < self.timeout

    def left(self) -> float:
        """Returns the seconds that are left, more than 0."""
        return max(self.timeout - (time.monotonic() - self._start), 0.01)

    def quiet(self) -> float:
        """Returns the seconds, more than 0, until the next reminder or the end of the wait."""
        return max(min(self._reminders.next - time.monotonic(), self.left()), 0.01)


def wait_for(
    environ: Mapping[str, str], key: str, wait: Wait, what: str = "start"
) -> dict[str, str]:
    """Waits until a living process of this user has written the file `key`.

    Args:
        what: What rank 0 does on this host before it writes the file.

    Raises:
        TimeoutError: The file did not appear in time.
    """
    usual = user_folder.own(environ)
    while True:
        for folder in (*filter(_is_private, usual), *_unusual()):
            content = _read(folder / key)
            if content is not None:
                return content
        note = usual[0] / key
        if not wait.goes_on(f"{what} on this host (it then writes the file {note})"):
            raise TimeoutError(
                f"{wait.who} has waited {in_seconds(wait.timeout)} (HERRING_CONNECT_TIMEOUT) for "
                f"rank 0 to {what} on this host and to write the file {note}: does it "
                "run on this host, as this user, with the same variables? If not, set "
                "HERRING_RENDEZVOUS=HOST:PORT (and HERRING_SECRET_FILE) for all"
            )
        time.sleep(_POLL_SECONDS)


def launcher_key(rank_variable: str) -> str:
    """Returns a name for the job that is derived from the process that launched its ranks.

    The launcher (or its helper on this host) is the nearest ancestor that was started without
    `rank_variable`, however many shells are in between.

    Returns:
        The process ID and start time, which together do not repeat while the machine is up.
    """
    pid = os.getppid()
    while pid > 1 and _started_with(pid, rank_variable):
        above = proc.parent(pid)
        if not above:
            break
        pid = above
    return proc.identity(pid)


def _started_with(pid: int, variable: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    prefix = variable.encode() + b"="
    return any(entry.startswith(prefix) for entry in environment.split(b"\0"))


def _read(path: Path) -> dict[str, str] | None:
    """Returns a file's content, or None if there is no file or its writer has ended."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not _is_locked(fd):
            return None
        content = json.loads(os.read(fd, 1 << 16))
    except ValueError:
        return None
    finally:
        os.close(fd)
    return content if isinstance(content, dict) else None


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _sweep(folder: Path) -> None:
    """Removes files whose writers ended long ago."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            old = time.time() - path.lstat().st_mtime > _STALE_SECONDS
            if old and path.is_file() and _read(path) is None:
                path.unlink()
