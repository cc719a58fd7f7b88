"""Accepts connections of which most may be strangers', and keeps none of the members out.

A guest is a connection that has not shown yet that it belongs. Each is heard in a thread of its
own. If there are too many, the one that came first is dropped: a member says what it has to say as
soon as it is connected, and one that was dropped because it is slow connects again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

_GUESTS = 256
# Seconds that every guest has, even if more connections want a place.
_FAIR_SECONDS = 0.1
_PAUSE = 0.05  # seconds after a connection that could not be served
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """Accepts connections on several ports until `close`, also in a forked child."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        hear: Callable[[socket.socket, Callable[[], None]], bool],
        who: str,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Starts to accept.

        Args:
            sockets: Sockets that listen; `close` closes them.
            hear: Called in a thread of its own with each guest, perhaps before this constructor
                returns, and with a function to call as soon as the guest has shown that it belongs.
                It sets time limits itself, and returns whether it keeps the connection, which
                otherwise is closed.
            who: The process that listens, for messages.
            warn: Called with a text if connections are dropped because no thread can be started.
        """
        self.sockets = list(sockets)
        self._hear = hear
        self._who = who
        self._warn = warn
        self._guests: dict[socket.socket, float] = {}  # since when; the oldest one comes first
        self._lock = threading.Lock()
        self._owner = os.getpid()
        for each in self.sockets:
            each.settimeout(None)
            threading.Thread(target=self._accept, args=(each,), daemon=True).start()

    def close(self) -> None:
        """Closes the ports and drops all guests. Harmless to repeat, and after a fork."""
        for each in self.sockets:
            if os.getpid() == self._owner:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            each.close()
        if os.getpid() == self._owner:
            with self._lock:
                for guest in self._guests:
                    self._drop(guest)
            return
        # The threads do not exist in the child, but their descriptors do.
        for guest in self._guests:
            guest.close()

    def _admit(self, guest: socket.socket) -> None:
        """Takes a guest for a member, which nobody drops."""
        with self._lock:
            self._guests.pop(guest, None)

    def _accept(self, listener: socket.socket) -> None:
        warned = False
        while True:
            self._make_room(_GUESTS)
            try:
                guest, _ = listener.accept()
            except OSError as error:
                if listener.fileno() < 0:
                    return
                if error.errno in _OUT_OF_RESOURCES:
                    self._make_room(0)  # a descriptor for the next guest
                time.sleep(_PAUSE)
                continue
            with self._lock:
                self._guests[guest] = time.monotonic()
            try:
                threading.Thread(target=self._welcome, args=(guest,), daemon=True).start()
                warned = False
            except RuntimeError as error:
                self._admit(guest)
                guest.close()
                if not warned:
                    warned = True
                    self._warn(
                        f"connections to {self._who} are dropped: {error}. Raise the limit of "
                        "processes and threads (ulimit -u, or the cgroup's pids.max)"
                    )
                time.sleep(_PAUSE)

    def _make_room(self, most: int) -> None:
        """Drops the oldest guest if there are at least `most`, but only after its fair time."""
        with self._lock:
            oldest = next(iter(self._guests), None) if len(self._guests) >= most else None
            since = self._guests.get(oldest, 0.0) if oldest is not None else 0.0
        if oldest is None:
            return
        time.sleep(max(since + _FAIR_SECONDS - time.monotonic(), 0.0))
        with self._lock:
            if self._guests.pop(oldest, None) is not None:
                self._drop(oldest)

    def _welcome(self, guest: socket.socket) -> None:
        kept = False
        try:
            kept = self._hear(guest, lambda: self._admit(guest))
        finally:
            self._admit(guest)
            if not kept:
                guest.close()

    @staticmethod
    def _drop(guest: socket.socket) -> None:
        with contextlib.suppress(OSError):
            guest.shutdown(socket.SHUT_RDWR)  # its thread closes it
