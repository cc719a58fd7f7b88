"""A scheduler's notice, by a signal, that it is about to end a worker of an elastic job.

The worker then leaves the job between two steps, so that the others lose none. Everything else that
knows of its end by other means calls `herring.elastic.leave`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from herring.base.units import parse_seconds
from herring.errors import ConfigurationError

#: The exit status of a worker that has left. It is not 0, which says that the training has ended,
#: and none of a signal. sysexits.h has it for what is worth another attempt.
EXIT_LEFT = os.EX_TEMPFAIL

_SECONDS = 10.0
_SIGNALS = ("HUP", "QUIT", "TERM", "USR1", "USR2", "XCPU")


@dataclass(frozen=True)
class Notice:
    """How a scheduler tells a worker that it is about to end it."""

    signal: signal.Signals  # the signal
    seconds: float = _SECONDS  # how long the worker may take to leave

    @classmethod
    def parse(cls, text: str, origin: str = "HERRING_NOTICE") -> Notice | None:
        """Returns the notice that a text such as ``SIGTERM`` or ``USR1@30`` describes.

        Args:
            text: The text; an empty one means that there is none.

        Raises:
            ConfigurationError: The text is not allowed.
        """
        if not text:
            return None
        name, given, time = text.strip().upper().partition("@")
        name = name.removeprefix("SIG")
        with contextlib.suppress(ConfigurationError):
            if name in _SIGNALS:
                number = signal.Signals[f"SIG{name}"]
                return cls(number, parse_seconds(time.lower()) if given else _SECONDS)
        raise ConfigurationError(
            f"{origin} {text}: allowed is one of SIG{', SIG'.join(_SIGNALS)}, with or without @ "
            f"and the time that the worker has, as in SIGTERM@{_SECONDS:g}"
        )


class Watch:
    """Waits for the notice inside a `with` block, which the main thread enters.

    The signal's handler before it is called, too, and is there again after the block. A process
    without such a handler ends by the signal in the end, as it would have at once.
    """

    def __init__(self, notice: Notice, leave: Callable[[float], bool], late: Callable[[], None]):
        """Prepares the watch.

        Args:
            leave: Called in a thread of its own with the seconds that are left. It lets the process
                leave the job, and returns when these are over, or True when the job ends.
            late: Called after that if the block has not ended, and the job does not end.
        """
        self._notice = notice
        self._leave = leave
        self._late = late
        self._over = False
        # Unlike other queues and locks, a handler may use this one whatever it has interrupted.
        self._notices: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._before: Any = signal.SIG_DFL

    def __enter__(self) -> None:
        """Installs the handler."""
        self._before = signal.getsignal(self._notice.signal) or signal.SIG_DFL
        signal.signal(self._notice.signal, self._on_signal)
        _watches.add(self)
        threading.Thread(target=self._wait, name="herring-notice", daemon=True).start()

    def __exit__(self, _: object, error: object, *__: object) -> None:
        """Removes the handler."""
        self._over = True
        self._notices.put(False)
        if isinstance(error, SystemExit) and error.code == EXIT_LEFT:
            # A notice that is repeated must not change the exit status.
            signal.signal(self._notice.signal, signal.SIG_IGN)
        else:
            self.remove()

    def remove(self) -> None:
        """Gives the signal back, unless the program has taken it meanwhile."""
        _watches.discard(self)
        if signal.getsignal(self._notice.signal) == self._on_signal:
            signal.signal(self._notice.signal, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._notices.put(True)  # schedulers may repeat it
        if callable(self._before):
            self._before(number, frame)

    def _wait(self) -> None:
        if not self._notices.get():
            return
        ends = self._leave(self._notice.seconds)
        if self._over or self._before != signal.SIG_DFL:
            return
        if not ends:
            self._late()
        # Only the main thread may do this by means of Python, and it may be in a long call.
        ctypes.CDLL(None).signal(int(self._notice.signal), None)
        os.kill(os.getpid(), self._notice.signal)


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


def _in_forked_child() -> None:
    for one in list(_watches):
        one.remove()  # otherwise the signal would not end a data loader's worker


os.register_at_fork(after_in_child=_in_forked_child)
