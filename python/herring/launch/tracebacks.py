"""Keeps the tracebacks in a rank's output in one piece, and remembers the rank's last words.

Python writes a traceback in dozens of small pieces. Several ranks often fail together, and their
tracebacks would otherwise be interleaved line by line.
"""

from __future__ import annotations

import re
import time

__all__ = ["Tracebacks"]

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
# The core puts time, process and level before a line of its log. Its threads may write such a line
# while Python writes a traceback.
_LOGGED = re.compile(rb"[\d-]{10} [\d:.]{12} \[herring[ \w]*\] \w+: ")
# Marks a part of the source above, without indentation if a statement has several lines.
_CARETS = re.compile(rb"[\^~][\^~ ]*\s*")
_TREE = re.compile(rb"\s*[|+](?:-\+-+.*)?[ ]?")


class Tracebacks:
    """Holds the tracebacks in one stream until they are complete.

    Attributes:
        due: When `release` must be called (`time.monotonic`), or None if nothing is held.
        error: The last line of the last traceback, which says what went wrong; or empty.
        error_at: When that traceback began (`time.time`).
        ends_with_error: Whether nothing but log lines came after that traceback.
        last_line: The last line that is not blank, as far as it is complete, and without the time,
            process and level of a log line.
        last_at: When the last line came (`time.time`).
    """

    def __init__(self) -> None:
        self.due: float | None = None
        self.error = ""
        self.error_at = 0.0
        self.ends_with_error = False
        self.last_line = ""
        self.last_at = 0.0
        self._line = b""  # the start of the incomplete line, while nothing is held
        self._held = bytearray()
        self._began = 0.0
        self._began_at = 0.0

    def feed(self, data: bytes) -> bytes:
        """Takes what the process wrote, and returns what can be shown now."""
        shown = b""
        if self.due is None:
            # A header may arrive in two pieces.
            text = self._line + data if len(self._line) < _LINE_START else data
            match = _HEADER.search(text) if _SIGN in text or _FATAL in text else None
            if match is None:
                self._note(text)
                cut = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
                self._line = text[cut : cut + _LINE_START]
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
        self._note(self._line + data)
        self._note_error(self._line + data)
        self._line = data[data.rfind(b"\n") + 1 :][:_LINE_START]
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
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return
        self.ends_with_error = self.ends_with_error and all(map(_LOGGED.match, lines))
        logged = _LOGGED.match(lines[-1])
        self.last_line = _words(lines[-1][logged.end() :] if logged else _plain(lines[-1]))
        self.last_at = time.time()

    def _note_error(self, text: bytes) -> None:
        """Finds the line that says what went wrong: the first one after the last frames."""
        expected = False
        lines = [line for line in text.splitlines() if not _LOGGED.match(line)]
        for line in map(_plain, lines):
            if line.endswith(b"(most recent call last):"):
                expected = True
            elif line.startswith(_FATAL):
                self._set_error(line)
            elif expected and line.strip() and line[:1] != b" " and not _CARETS.fullmatch(line):
                self._set_error(line)
                expected = False

    def _set_error(self, line: bytes) -> None:
        self.error, self.error_at, self.ends_with_error = _words(line), self._began_at, True


def _plain(line: bytes) -> bytes:
    """Removes what torch and exception groups put before a line."""
    match = re.match(rb"\[rank\d+\]:[ ]?", line)
    if match:
        line = line[match.end() :]
    tree = _TREE.match(line)
    return line[tree.end() :] if tree else line


def _words(line: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).strip()[:2000]
