"""Merges the output of several processes into one terminal or file.

Lines of different processes never mix, and each begins with the prefix of its process. On a
terminal one process, rank 0, is *live*: its output appears at once, so that its progress bar moves,
and lines of the others are inserted above its unfinished line.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from herring.errors import ConfigurationError
from herring.launch.tracebacks import Tracebacks
from herring.terminal.command_line import log_line

TIME_COLUMNS = 24  # of the time in a prefix

# Cyan, yellow, green, magenta, blue and red are readable on dark and light backgrounds.
_COLOURS = (36, 33, 32, 35, 34, 31)
_MAXIMUM_LINE = 1 << 20
_TOKEN = re.compile(
    rb"""
    \x1b\[[0-?]*[ -/]*[@-~]             # control sequence: colour, erase, move
    | \x1b\][^\x07\x1b]*(?:\x07|\x1b\\) # operating system command: window title, link
    | \x1b[^\[\]]                       # other escapes
    | \r\n | \n | \r
    | [^\x1b\r\n]+
    """,
    re.VERBOSE,
)
# A "\r" at the very end does not count yet: the next byte may be a "\n" that belongs to it.
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


def prefix(label: str, index: int, colour: bool) -> bytes:
    """Returns ``[label] ``; if `colour` is set, in a colour that depends on `index`."""
    if not colour:
        return f"[{label}] ".encode()
    # 39 restores only the foreground, so a bold line of the program stays bold.
    return f"\x1b[{_COLOURS[index % len(_COLOURS)]}m[{label}]\x1b[39m ".encode()


def open_standard_descriptors() -> None:
    """Opens closed descriptors among 0, 1 and 2 as /dev/null, so that no file gets the number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def open_copies(
    folder: Path, ranks: Iterable[int], workers: int
) -> dict[int, tuple[BinaryIO, BinaryIO]]:
    """Opens the files ``rank.N/stdout`` and ``rank.N/stderr`` for the output of some ranks.

    Args:
        workers: The number of workers, which determines the digits of N.

    Raises:
        ConfigurationError: A file cannot be written.
    """
    found: dict[int, tuple[BinaryIO, BinaryIO]] = {}
    digits = len(str(workers - 1))
    for rank in ranks:
        place = folder / f"rank.{rank:0{digits}}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            out, err = ((place / name).open("wb", buffering=0) for name in ("stdout", "stderr"))
        except OSError as error:
            where = error.filename or place
            raise ConfigurationError(f"--output-filename: {where}: {error.strerror}") from None
        found[rank] = (out, err)
    return found


class Sink:
    """A descriptor that several sources write to."""

    def __init__(
        self,
        fd: int,
        terminal: bool,
        wait: Callable[[int], bool] = lambda fd: bool(select.select([], [fd], [])[1]),
        on_error: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        self.fd = fd  # the descriptor
        self.terminal = terminal  # whether the descriptor is a terminal
        # Called with the descriptor when its reader has stopped reading. Returns True when the
        # descriptor takes data again, or False if the data are to be dropped.
        self.wait = wait
        # Called once when the descriptor can never be written again; later data are dropped.
        self.on_error = on_error
        self._dead = False
        try:
            self._file = stat.S_ISREG(os.fstat(fd).st_mode)
        except OSError:
            self._file = False
        self._owner: Source | None = None  # the source of the unfinished line
        self._unfinished = b""

    def write(self, data: bytes, source: Source | None, unfinished: bytes = b"") -> None:
        """Writes lines, or data that end with `unfinished`; BrokenPipeError without a reader."""
        other = self._owner is not None and self._owner is not source
        if other and self.terminal:
            # Erase the unfinished line, write the new lines, and repeat the unfinished line below.
            data = b"\r\x1b[2K" + data + self._unfinished
        else:
            if other:
                data = b"\n" + data
            self._owner = source if unfinished else None
            self._unfinished = unfinished
        view = memoryview(data)
        while view and not self._dead:
            try:
                if not self._file and not select.select([], [self.fd], [], 0)[1]:
                    if not self.wait(self.fd):
                        return
                    continue
                # A descriptor that is writable takes up to PIPE_BUF bytes without blocking.
                view = view[os.write(self.fd, view if self._file else view[: select.PIPE_BUF]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise
            except OSError as error:
                self._dead = True
                if error.errno != errno.EIO:  # SIGHUP tells of a terminal that was closed
                    self.on_error(error)


@dataclass(eq=False)
class Source:
    """The output of one descriptor of one process, on its way to a sink."""

    sink: Sink
    mark: bytes  # prefix of each line; may be empty
    live: bool = False  # whether unfinished lines are shown at once; for one source of a terminal
    # An unbuffered file that gets the bytes unchanged, or None. The caller closes it, because a
    # process that is started again goes on with it.
    copy: BinaryIO | None = None
    timed: bool = False  # whether the time stands before `mark`, as horovodrun writes it
    # Holds tracebacks until they are complete; `release` shows what it holds.
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _pending: bytes = b""
    _line: bytes = b""  # live: the present content of the terminal's line
    _at_start: bool = True
    _marked: bool = False

    @property
    def _mark(self) -> bytes:
        if not self.timed:
            return self.mark
        return time.asctime().encode() + (self.mark or b" ")

    def feed(self, data: bytes) -> None:
        """Takes bytes that the process wrote."""
        if self.copy is not None:
            self._write_copy(data)
        self._show(self.tracebacks.feed(data))

    def release(self) -> None:
        """Shows what is held."""
        self._show(self.tracebacks.release())

    def _show(self, data: bytes) -> None:
        if data and self.live:
            self._feed_live(data)
        elif data:
            self._feed_lines(data)

    def finish(self) -> None:
        """Shows the unfinished line, after the process has closed its end."""
        self.release()
        self.copy = None
        rest, self._pending = self._pending, b""
        if self.live:
            if rest or self._line:
                self.sink.write(rest + b"\n", self)
        elif rest:
            self.sink.write(self._mark + rest.rstrip(b"\r") + b"\n", self)

    def _write_copy(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self.copy.write(view) :]
        except OSError as error:  # the training goes on without the copy
            text = f"{self.copy.name}: {error.strerror}; nothing more goes there"
            self.copy = None
            self.sink.write(log_line("warning", "herring run", text).encode(), None)

    def _feed_lines(self, data: bytes) -> None:
        data = self._pending + data
        shown = []
        start = 0
        unfinished = b""
        for match in _LINE_END.finditer(data):
            text = data[start : match.start()]
            start = match.end()
            if match.group() != b"\r":
                shown.append(self._mark + text + b"\n")
                unfinished = b""
            elif text and not self.sink.terminal:
                # A progress bar in a file keeps every state, as without the launcher.
                unfinished = self._mark + text + b"\r"
                shown.append(unfinished)
            # On a terminal only the last state counts; the bar itself belongs to the live source.
        self._pending = data[start:]
        if len(self._pending) > _MAXIMUM_LINE:
            shown.append(self._mark + self._pending + b"\n")
            self._pending, unfinished = b"", b""
        if shown:
            self.sink.write(b"".join(shown), self, unfinished)

    def _feed_live(self, data: bytes) -> None:
        data = self._pending + data
        shown = []
        end = 0
        for match in _TOKEN.finditer(data):
            if match.start() != end:
                break  # an incomplete escape sequence
            token, end = match.group(), match.end()
            shown.append(self._live_token(token))
        self._pending = data[end:]
        if len(self._pending) > 4096:  # no escape sequence is that long
            shown.append(self._pending)
            self._pending = b""
        text = b"".join(shown)
        if text:
            self.sink.write(text, self, self._line)

    def _live_token(self, token: bytes) -> bytes:
        if token in (b"\n", b"\r\n"):
            text = token if self._marked else self._mark.rstrip(b" ") + token
            self._line, self._at_start, self._marked = b"", True, False
            return text
        if token == b"\r":
            if self._line and not self._line.endswith(b"\r"):
                self._line += token
            self._at_start = True
            return token
        # At the start of a line, erasing and moving come before the prefix, all else after it.
        if self._at_start and not (token.startswith(b"\x1b") and not token.endswith(b"m")):
            token = self._mark + token
            self._line, self._at_start, self._marked = b"", False, True
        self._line = (self._line + token)[-_MAXIMUM_LINE:]
        return token
