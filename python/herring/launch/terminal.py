"""The pseudo-terminal that rank 0 writes to when the output is a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios

__all__ = ["open_terminal", "resize"]


def open_terminal(like: int, less: int) -> tuple[int, int]:
    """Opens a pseudo-terminal.

    Args:
        like: The terminal whose size the new one gets.
        less: The number of columns to subtract.

    Returns:
        The launcher's side, which does not block, and the side of the process.
    """
    ours, inner = os.openpty()
    attributes = termios.tcgetattr(inner)
    attributes[1] &= ~termios.OPOST  # the real terminal turns "\n" into "\r\n"
    attributes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    resize(ours, like, less)
    os.set_blocking(ours, False)
    return ours, inner


def resize(ours: int, like: int, less: int) -> None:
    """Gives a pseudo-terminal the size of another terminal, unless that terminal is gone."""
    with contextlib.suppress(OSError):
        size = os.get_terminal_size(like)
        packed = struct.pack("HHHH", size.lines, max(20, size.columns - less), 0, 0)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, packed)
