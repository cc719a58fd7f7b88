"""A scheduler's notice to a worker of an elastic job: the signal, without a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from herring.errors import ConfigurationError
from herring.lobby.notice import EXIT_LEFT, Notice, Watch


@pytest.fixture(autouse=True)
def handler() -> Iterator[list[int]]:
    """A handler of the program's, and the signals that it has got."""
    got: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: got.append(number))
    yield got
    signal.signal(signal.SIGUSR2, before)


def test_what_is_a_notice() -> None:
    assert Notice.parse("") is None
    assert Notice.parse("SIGTERM") == Notice(signal.SIGTERM, 10.0)
    assert Notice.parse("usr1@2m") == Notice(signal.SIGUSR1, 120.0)
    for text in ("KILL", "SIGINT", "15", "TERM@", "TERM@soon", "TERM@0", "@5", "TERM 5"):
        with pytest.raises(ConfigurationError, match=r"NOTICE .*: allowed is one of SIGHUP"):
            Notice.parse(text)


def test_the_programs_handler_is_called_too_and_comes_back(handler: list[int]) -> None:
    own = signal.getsignal(signal.SIGUSR2)
    left = threading.Event()

    def leave(seconds: float) -> bool:
        assert seconds == 7
        left.set()
        return True

    with Watch(Notice(signal.SIGUSR2, 7), leave, lambda: None):
        child = os.fork()
        if child == 0:
            os._exit(signal.getsignal(signal.SIGUSR2) != own)
        assert os.waitpid(child, 0)[1] == 0  # a child has the program's handler only
        signal.raise_signal(signal.SIGUSR2)
        assert left.wait(600)
        signal.raise_signal(signal.SIGUSR2)  # schedulers repeat it
    assert signal.getsignal(signal.SIGUSR2) == own
    assert handler == [signal.SIGUSR2] * 2


def test_a_handler_that_comes_later_stays() -> None:
    with Watch(Notice(signal.SIGUSR2), lambda _: True, lambda: None):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


def test_a_notice_that_is_repeated_does_not_end_who_leaves() -> None:
    with pytest.raises(SystemExit), Watch(Notice(signal.SIGUSR2), lambda _: True, lambda: None):
        raise SystemExit(EXIT_LEFT)
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


@pytest.mark.parametrize(("ends", "said"), [("False", "late\n"), ("True", "")])
def test_who_cannot_leave_ends_by_the_signal(ends: str, said: str) -> None:
    """Even in a call that no handler interrupts; and at once if the whole job ends."""
    script = f"""
import ctypes, os, signal, threading
from herring.lobby.notice import Notice, Watch

def leave(seconds):
    return {ends} or threading.Event().wait(seconds)

with Watch(Notice(signal.SIGTERM, 0.05), leave, lambda: print("late", flush=True)):
    threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    ctypes.CDLL(None).pause() and ctypes.CDLL(None).pause()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, said)
