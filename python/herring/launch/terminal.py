"""The pseudo-terminal of a rank, and what is typed for it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

_EOF = b"\x04"  # what a terminal takes for Ctrl-D


def open_terminal(like: int, less: int, reads: bool = False) -> tuple[int, int]:
    """Opens a pseudo-terminal.

    Args:
        reads: Whether what is typed is shown, and is edited by the line.

    Returns:
        The launcher's side, which does not block, and the side of the process.
    """
    ours, inner = os.openpty()
    attributes = termios.tcgetattr(inner)
    attributes[1] &= ~termios.OPOST  # the real terminal turns "\n" into "\r\n"
    if not reads:
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
    # Ctrl-C and Ctrl-Z typed at the real terminal are signals for the launcher.
    attributes[3] &= ~termios.ISIG
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    resize(ours, like, less)
    os.set_blocking(ours, False)
    return ours, inner


class Keyboard:
    """Hands what is typed at the launcher's terminal to a rank's pseudo-terminal."""

    def __init__(self, ours: int, shows: bool) -> None:
        """Takes over the terminal at descriptor 0.

        Args:
            shows: Whether the pseudo-terminal shows what is typed, and edits it. The real terminal
                then passes each key on, and shows nothing itself.
        """
        self._ours = ours
        self._shows = shows
        self._before = termios.tcgetattr(0)
        self.take()

    @staticmethod
    def usable() -> bool:
        """Returns whether descriptor 0 is a terminal that this process may read from now."""
        if not os.isatty(0):
            return False
        try:
            return os.tcgetpgrp(0) == os.getpgrp()
        except OSError:  # not the terminal of this session, which has no say in it then
            return True

    def take(self) -> None:
        """Prepares the real terminal; to be called again when a stopped launcher goes on."""
        if self._shows and self.usable():
            attributes = termios.tcgetattr(0)
            attributes[3] &= ~(termios.ECHO | termios.ICANON)
            attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(0, termios.TCSADRAIN, attributes)

    def give_back(self) -> None:
        """Puts the real terminal back as it was; may be repeated."""
        if self._shows and self.usable():
            with contextlib.suppress(termios.error):  # it may be gone
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def pass_on(self) -> bool:
        """Passes on what was typed; returns whether more may come."""
        if not self.usable():
            return False  # the shell reads now
        try:
            typed = os.read(0, 512)
            # Like a terminal, it drops keys that nobody reads for long.
            with contextlib.suppress(BlockingIOError):
                os.write(self._ours, typed or _EOF)
        except OSError:  # one of the two terminals is gone
            return False
        return bool(typed)


def resize(ours: int, like: int, less: int) -> None:
    """Gives a pseudo-terminal the size of another terminal, unless that terminal is gone."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(like)
        packed = struct.pack("HHHH", size.lines, max(20, size.columns - less), 0, 0)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, packed)
