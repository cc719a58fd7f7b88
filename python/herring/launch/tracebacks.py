"""Keeps the tracebacks in a rank's output in one piece, and remembers the rank's last words.

Python writes a traceback in dozens of small pieces. Several ranks often fail together, and their
tracebacks would otherwise be interleaved line by line.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

_QUIET_SECONDS = 0.1  # after the apparent end: another traceback may follow
_STALLED_SECONDS = 2.0  # inside a traceback: the process may not get a processor
_LONGEST_SECONDS = 5.0
_LARGEST = 1 << 20
_LINE_START = 200  # a traceback must begin within this number of bytes of a line
_SIGN = b"(most recent call "
_HEADER = re.compile(
    rb"""
    (?:\A|(?<=[\r\n]))
    (?P<mark>\[rank\d+\]:[ ]?)?          # of the hook of torch.distributed
    (?:
        [ ]*(?:[|+][ ])?(?:Exception\ Group\ )?Traceback\ \(most\ recent\ call\ last\):
        | Fatal\ Python\ error:\ [^\r\n]*
        | (?:Current\ thread|Thread)\ 0x[0-9a-f]+\ \S?[^\r\n]*\(most\ recent\ call\ first\):
    )
    """,
    re.VERBOSE,
)
_BETWEEN = (b"During handling of the above exception", b"The above exception was the direct cause")
_FATAL = b"Fatal Python error: "
# What comes before a traceback that did not end the process: Python goes on after each of these.
_IGNORED = re.compile(rb"Exception ignored |Error in atexit|--- Logging error ---")
# A thread or a child of the process may be why the process fails later.
_ASIDE = re.compile(rb"Exception in thread |Process \S+:$")
# The core puts time, process and level before a line of its log. Its threads may write such a line
# while Python writes a traceback.
_LOGGED = re.compile(rb"[\d-]{10} [\d:.]{12} \[herring[ \w]*\] (\w+): ")
# The same in the middle of a line, behind a statement's indentation or an exception's name.
_INSERTED = re.compile(
    rb"^( *|[\w.]+)(?:[\d-]{10} [\d:.]{12} \[herring[ \w]*\] \w+: [^\r\n]*\r?\n)+", re.MULTILINE
)
_PYTHON_WARNING = re.compile(rb"\S.*:\d+: \w*Warning: ")
# Lines that say nothing of why a process ended: logs below the level of errors (of torch,
# TensorFlow and Python's logging), warnings, and progress bars.
_CHATTER = re.compile(
    rb"""
    \[?[IW]\d{4}\ [\d:.]+\s
    | [\d-]{10}\ [\d:.]+:\ [IW]\s
    | .{0,60}\b(?:WARNING|INFO|DEBUG)\b
    | .*\b\w*Warning:\s
    | .*\d%\|
    """,
    re.VERBOSE,
)
_LOGGED_ERROR = re.compile(rb"\[?E\d{4} [\d:.]+\s|[\d-]{10} [\d:.]+: E\s")
# What a library in C++ prints before it ends the process; often its own stack follows.
_NATIVE = re.compile(
    rb"terminate called |.*: Assertion `.*' failed\.|\[?F\d{4} [\d:.]+\s|[\d-]{10} [\d:.]+: F\s"
)
_WHAT = re.compile(rb"\s*what\(\):\s*")
# Marks a part of the source above, without indentation if a statement has several lines.
_CARETS = re.compile(rb"[\^~][\^~ ]*\s*")
# In the traceback of an exception group: a line of a sub-exception, and the line before each one.
_NESTED = re.compile(rb"(?:\[rank\d+\]:[ ]?)?\s*\|")
_DIVIDER = re.compile(rb"\+-+ [\d.]+ -+\Z")
_TREE = re.compile(rb"\s*[|+](?:-\+-+.*)?[ ]?")


@dataclass(frozen=True)
class LastWords:
    """What a process printed last, as far as it may say why the process ended."""

    # The exception of the last traceback, or empty. Tracebacks after which Python goes on do not
    # count: of ignored exceptions, of functions at exit, of logging.
    error: str = ""
    # That exception and those that led to it, or that are in its group.
    errors: tuple[str, ...] = ()
    error_at: float = 0.0  # when that traceback began (`time.time`)
    # Whether nothing but log lines and warnings came after that traceback.
    ends_with_error: bool = False
    # The last line of standard error that is no warning, without the time, process and level of a
    # log line; or what a library printed when it ended the process.
    line: str = ""
    line_at: float = 0.0  # when the last line came, of whatever kind (`time.time`)


class Tracebacks:
    """Holds the tracebacks in one stream until they are complete."""

    def __init__(self) -> None:
        # When `release` must be called (`time.monotonic`), or None if nothing is held.
        self.due: float | None = None
        self._errors: tuple[str, ...] = ()  # of the last traceback; the first ended the process
        self._error_at = 0.0
        self._of_the_end = False  # whether the last traceback is not one of a thread or a child
        self._ends_with_error = False
        self._last_line = ""
        self._last_at = 0.0
        self._native = ""
        self._previous = b""  # the last complete line that is not blank
        self._line = b""  # the start of the incomplete line, while nothing is held
        self._line_noted = False
        self._held = bytearray()
        self._began = 0.0
        self._began_at = 0.0

    def last_words(self) -> LastWords:
        """Returns what the stream says, after its end."""
        if not self._line_noted:
            self._note(self._line)  # a process may end within a line
        first = self._errors[0] if self._errors else ""
        line = self._native or self._last_line
        return LastWords(
            *(first, self._errors, self._error_at, self._ends_with_error, line, self._last_at)
        )

    def feed(self, data: bytes) -> bytes:
        """Takes what the process wrote, and returns what can be shown now."""
        shown = b""
        if self.due is None:
            # A header may arrive in two pieces.
            text = self._line + data if len(self._line) < _LINE_START else data
            match = _HEADER.search(text) if _SIGN in text or _FATAL in text else None
            if match is None:
                cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
                self._note(text[:cut])
                self._line = text[cut : cut + _LINE_START]
                self._line_noted = False
                return data
            begin = max(0, match.start() - (len(text) - len(data)))
            shown, data = data[:begin], data[begin:]
            self._note(text[: match.start()])
            self._line = text[match.start() : len(text) - len(data)]  # already shown
            self._began, self._began_at = time.monotonic(), time.time()
        self._held += data
        now = time.monotonic()
        wait = _STALLED_SECONDS if self._goes_on() else _QUIET_SECONDS
        self.due = min(now + wait, self._began + _LONGEST_SECONDS)
        if len(self._held) > _LARGEST:
            return shown + self.release()
        return shown

    def release(self) -> bytes:
        """Returns what is held; to be called at `due` and at the end of the stream."""
        if self.due is None:
            return b""
        data = bytes(self._held)
        self._held.clear()
        self.due = None
        self._note_errors(self._line + data)
        self._line = data[data.rfind(b"\n") + 1 :][:_LINE_START]
        self._line_noted = True
        return data

    def _goes_on(self) -> bool:
        """Returns whether the traceback is certainly incomplete."""
        text = bytes(self._line + self._held[-4096:])
        if not text.endswith(b"\n"):
            return True
        lines = reversed(text[:-1].split(b"\n"))
        line = _plain(next((line for line in lines if not _LOGGED.match(line)), b""))
        if not line or line[:1] == b" " or _CARETS.fullmatch(line):
            return True
        return line.startswith(_BETWEEN) or line.endswith(b"last):")

    def _note(self, text: bytes) -> None:
        """Takes lines outside of tracebacks."""
        lines = [line for line in map(_plain, text.splitlines()) if line.strip()]
        if not lines:
            return
        said = [
            line
            for before, line in zip([self._previous, *lines], lines, strict=False)
            # Python shows the statement below a warning.
            if not (line[:1] == b" " and _PYTHON_WARNING.match(before)) and not _is_chatter(line)
        ]
        self._ends_with_error &= all(
            _LOGGED.match(line) or _LOGGED_ERROR.match(line) for line in said
        )
        for line in said:
            if _NATIVE.match(line):
                self._native = _words(line)
            elif self._native and (what := _WHAT.match(line)):
                self._native += f": {_words(line[what.end() :])}"
        if said:
            logged = _LOGGED.match(said[-1])
            self._last_line = _words(said[-1][logged.end() :] if logged else said[-1])
        self._previous = lines[-1]
        self._last_at = time.time()

    def _note_errors(self, text: bytes) -> None:
        """Finds the lines that say what went wrong: the first ones after the last frames."""
        previous = self._previous
        found = _Found()
        expected = False
        lines = _INSERTED.sub(rb"\1", text).splitlines()
        for raw in (line for line in lines if not _LOGGED.match(line)):
            line = _plain(raw)
            if line.endswith(b"(most recent call last):"):
                nested = bool(_NESTED.match(raw))
                if not nested and not (found.errors and previous.startswith(_BETWEEN)):
                    self._record(found)
                    found = _Found(bool(_IGNORED.match(previous)), bool(_ASIDE.match(previous)))
                if not nested:
                    found.top = len(found.errors)
                expected = True
            elif _DIVIDER.search(raw):
                expected = True
            elif line.startswith(_FATAL):
                text_ = f"{_words(line)}: {self._native}" if self._native else _words(line)
                self._record(_Found(errors=[text_]))
                found, expected = _Found(), False
            elif expected and line.strip() and line[:1] != b" " and not _CARETS.fullmatch(line):
                found.errors.append(_words(line))
                expected = False
            if line.strip():
                previous = line
        self._record(found)
        self._previous = previous
        self._last_at = time.time()

    def _record(self, found: _Found) -> None:
        if not found.errors or found.ignored:
            return
        if found.aside and self._of_the_end and self._ends_with_error:
            return
        # The exceptions in a group follow it, and say more than the group does.
        error = ": ".join(found.errors[found.top : found.top + 2])
        self._errors = (error, *found.errors)
        self._error_at, self._ends_with_error = self._began_at, True
        self._of_the_end = not found.aside


@dataclass
class _Found:
    """One traceback."""

    ignored: bool = False  # whether Python goes on after it
    aside: bool = False  # whether it is of a thread, or of a child of the process
    # The exceptions in the order of their lines; the last one of a chain ends the chain.
    errors: list[str] = field(default_factory=list)
    top: int = 0  # which of them ended the process; those after it are in its group


def _is_chatter(line: bytes) -> bool:
    """Returns whether a line says nothing of why a process ended."""
    logged = _LOGGED.match(line)
    if logged:
        return logged.group(1) != b"error"
    return any(each.match(line) for each in (_CHATTER, _IGNORED, _ASIDE, _PYTHON_WARNING))


def _plain(line: bytes) -> bytes:
    """Removes what torch and exception groups put before a line."""
    match = re.match(rb"\[rank\d+\]:[ ]?", line)
    if match:
        line = line[match.end() :]
    tree = _TREE.match(line)
    return line[tree.end() :] if tree else line


def _words(line: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).strip()[:2000]
