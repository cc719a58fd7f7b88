"""Carries what all processes of a job print to this command's output."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from herring.launch.frames import kind
from herring.launch.options import RunOptions, Task
from herring.launch.output import TIME_COLUMNS, Sink, Source, open_copies, prefix
from herring.launch.terminal import Keyboard, open_terminal, resize
from herring.launch.tracebacks import LastWords
from herring.terminal.command_line import log_line

_DRAIN_SECONDS = 0.5
_NO_FILES = (None, None)
_LAST_READS = 4  # of a pipe whose process has ended; other writers may never stop


class Streams:
    """The output of all processes."""

    def __init__(
        self,
        options: RunOptions,
        selector: selectors.BaseSelector,
        wait: Callable[[int], bool],
        on_error: Callable[[OSError], None],
    ) -> None:
        """Opens nothing yet.

        Args:
            selector: Watches the pipes, with a `Source` as data; the caller then calls `read`.
            wait: See the attribute of `Sink`.
            on_error: See the attribute of `Sink`; for standard output only.
        """
        self._options = options
        self._selector = selector
        terminals = [os.isatty(1), os.isatty(2)]
        self.out = Sink(1, terminals[0], wait, on_error)  # the sink of standard output
        self.err = Sink(2, terminals[1], wait)  # the sink of standard error
        if all(terminals) and os.fstat(1).st_rdev == os.fstat(2).st_rdev:
            self.err = self.out  # one screen has one unfinished line
        self._colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._terminal = -1  # the launcher's side of a rank's pseudo-terminal
        self._keyboard: Keyboard | None = None
        self._files: dict[int, tuple[BinaryIO, BinaryIO]] = {}  # by rank: copies of its output
        self._sources: dict[tuple[int, int], Source] = {}  # by process and kind
        self._notes: dict[str, Source] = {}  # what ssh prints, by host

    def open_copies(self, ranks: Iterable[int]) -> None:
        """Opens the files for copies of these ranks' output; ConfigurationError if that fails."""
        if self._options.output is not None:
            workers = self._options.workers
            self._files |= open_copies(self._options.output, ranks, workers)

    def say(self, level: str, text: str) -> None:
        """Writes a line of the launcher's log; see `log_line` for the levels."""
        with contextlib.suppress(BrokenPipeError):
            self.err.write(log_line(level, "herring run", text).encode(), None)

    # Processes.

    def add(self, task: Task) -> None:
        """Prepares for the output of a process on another host, which `feed` takes."""
        copies = self._files.get(-1 if task.rank is None else task.rank, _NO_FILES)
        mark, timed = self._mark(task), self._options.prefix_time
        for kind_, sink, copy in (
            (kind.OUTPUT, self.out, copies[0]),
            (kind.ERRORS, self.err, copies[1]),
        ):
            self._sources[task.number, kind_] = Source(sink, mark, copy=copy, timed=timed)

    def connect(self, task: Task, popen: subprocess.Popen[bytes]) -> None:
        """Reads the pipes of a process on this machine."""
        self.add(task)
        for pipe, kind_ in ((popen.stdout, kind.OUTPUT), (popen.stderr, kind.ERRORS)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(
                    pipe, selectors.EVENT_READ, self._sources[task.number, kind_]
                )

    def open_terminal(self, reads: bool) -> tuple[int | None, int, int, int]:
        """Opens a pseudo-terminal for one rank, if the launcher's output or input is a terminal.

        Args:
            reads: Whether the rank reads from the launcher's terminal.

        Returns:
            The rank's standard input, output and error for Popen, and the descriptor to close after
            the start of the rank, or -1.
        """
        pipe = subprocess.PIPE
        # Without `reads` a rank reads a file or a pipe, but not a terminal: a background process
        # group that reads from a terminal is stopped.
        stdin = subprocess.DEVNULL if os.isatty(0) else None
        reads = reads and Keyboard.usable()
        shows = self.out.terminal or self.err.terminal
        if not (shows or reads):
            return stdin, pipe, pipe, -1
        self._terminal, inner = open_terminal(*self._screen(), reads and shows)
        if reads:
            self._keyboard = Keyboard(self._terminal, shows)
            self._selector.register(0, selectors.EVENT_READ, self._keyboard)
        return (
            inner if reads else stdin,
            inner if self.out.terminal else pipe,
            inner if self.err.terminal else pipe,
            inner,
        )

    def type_on(self) -> None:
        """Passes on what was typed for the rank with the terminal."""
        if self._keyboard is not None and not self._keyboard.pass_on():
            self._selector.unregister(0)

    @contextlib.contextmanager
    def without_keyboard(self) -> Iterator[None]:
        """Leaves the launcher's terminal as it was before, while the launcher is stopped."""
        if self._keyboard is not None:
            self._keyboard.give_back()
        yield
        if self._keyboard is not None:
            self._keyboard.take()

    def give_keyboard_back(self) -> None:
        """Puts the launcher's terminal back as it was; may be repeated."""
        if self._keyboard is not None:
            self._keyboard.give_back()
            self._keyboard = None
            with contextlib.suppress(KeyError):
                self._selector.unregister(0)

    def connect_terminal(self, task: Task) -> None:
        """Reads the pseudo-terminal of a rank; to be called after `connect`."""
        if not (self.out.terminal or self.err.terminal):
            return
        kind_ = kind.OUTPUT if self.out.terminal else kind.ERRORS
        sink = self.out if self.out.terminal else self.err
        copies = self._files.get(task.number, _NO_FILES)
        copy = copies[0] if self.out.terminal else copies[1]
        timed = self._options.prefix_time
        source = Source(sink, self._mark(task), live=True, copy=copy, timed=timed)
        self._sources[task.number, kind_] = source
        self._selector.register(self._terminal, selectors.EVENT_READ, source)

    def feed(self, number: int, kind_: int, data: bytes) -> None:
        """Takes output of a process that runs on another host."""
        self._sources[number, kind_].feed(data)

    def remove(self, number: int) -> None:
        """Removes a process that has ended; what its pipes still hold is read."""
        for kind_ in (kind.OUTPUT, kind.ERRORS):
            self._sources.pop((number, kind_), None)

    def feed_note(self, host: str, data: bytes) -> None:
        """Takes what ssh or the agent itself prints."""
        if host not in self._notes:
            mark, timed = self._prefix(host, 0), self._options.prefix_time
            self._notes[host] = Source(self.err, mark, timed=timed)
        self._notes[host].feed(data)

    def resize(self) -> None:
        """Adapts the pseudo-terminal of a rank to the new size of the real one."""
        if self._terminal >= 0:
            resize(self._terminal, *self._screen())

    # Reading.

    def read(self, key: selectors.SelectorKey) -> bool:
        """Moves one piece of output; returns whether there was any."""
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the other side of the pseudo-terminal is closed
            data = b""
        if data:
            key.data.feed(data)
            return True
        self._selector.unregister(key.fileobj)
        key.data.finish()
        if key.fd == self._terminal:
            self.give_keyboard_back()
            os.close(self._terminal)
            self._terminal = -1
        else:
            key.fileobj.close()  # type: ignore[union-attr]
        return False

    def next_deadline(self) -> float | None:
        """Returns when `on_time` must be called next, or None."""
        deadlines = [source.tracebacks.due for source in self._sources.values()]
        return min((each for each in deadlines if each is not None), default=None)

    def on_time(self, now: float) -> None:
        """Shows tracebacks that have been held long enough."""
        for source in self._sources.values():
            if source.tracebacks.due is not None and now >= source.tracebacks.due:
                source.release()

    def finish_process(self, number: int) -> None:
        """Shows the rest of what a process wrote, after it has ended."""
        mine = [source for (owner, _), source in self._sources.items() if owner == number]
        for key in list(self._selector.get_map().values()):
            if key.data in mine:
                for _ in range(_LAST_READS):
                    if not self.read(key):
                        break
        for source in mine:
            source.release()

    def last_words(self, number: int) -> LastWords:
        """Returns what a process printed last."""
        on_screen = self._sources.get((number, kind.OUTPUT))
        if on_screen is None:
            return LastWords()
        out = on_screen.tracebacks.last_words()
        err = self._sources[number, kind.ERRORS].tracebacks.last_words()
        last = max(err, out, key=lambda words: words.error_at)
        # A process with a terminal writes both streams to it.
        of_errors = err if err.line_at else out if on_screen.live else err
        return dataclasses.replace(last, line=of_errors.line, line_at=of_errors.line_at)

    def drain_pipes(self, *pipes: object) -> None:
        """Reads the rest of pipes whose writer has ended."""
        for pipe in pipes:
            for key in list(self._selector.get_map().values()):
                while key.fileobj is pipe and self.read(key):
                    pass

    def drain(self, is_read: Callable[[selectors.SelectorKey], bool]) -> None:
        """Shows the rest of all output; `is_read` tells whether `read` takes a key."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            keys = [key for key, _ in self._selector.select(0) if is_read(key)]
            moved = [self.read(key) for key in keys]  # read all, so that no pipe starves
            if not any(moved):
                break
        for key in list(self._selector.get_map().values()):
            if is_read(key):
                key.data.finish()
        self._finish(self._sources.values())
        self._finish(self._notes.values())
        for file in itertools.chain.from_iterable(self._files.values()):
            file.close()

    @staticmethod
    def _finish(sources: Iterable[Source]) -> None:
        for source in sources:
            source.finish()

    def _mark(self, task: Task) -> bytes:
        return self._prefix(task.name.removeprefix("rank "), task.number)

    def _prefix(self, label: str, number: int) -> bytes:
        if not self._options.prefix:
            return b""
        return prefix(label, number, self._colour and self.out.terminal)

    def _screen(self) -> tuple[int, int]:
        """Returns the descriptor of the real terminal, and how many columns prefixes take."""
        taken = TIME_COLUMNS * self._options.prefix_time
        screen = 1 if self.out.terminal else 2 if self.err.terminal else 0
        return screen, taken + (4 if self._options.prefix else 0)
