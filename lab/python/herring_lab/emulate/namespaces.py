"""Owns and removes the network namespaces of clusters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from herring.errors import HerringError

LOCK_DIRECTORY = pathlib.Path("/run/herring-lab")
PREFIX = "herring-"


_RIGHTS = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN"}  # by number; see capability.h of Linux
_REFUSALS = ("Operation not permitted", "Permission denied")


class ClusterError(HerringError):
    """An emulated cluster could not be made or used; the message quotes the tool that failed."""


def remove_stale() -> list[str]:
    """Removes the clusters of processes that died without closing them; returns their ids."""
    removed = []
    if not LOCK_DIRECTORY.is_dir():
        return removed
    for path in LOCK_DIRECTORY.iterdir():
        try:
            lock = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            remove(path.name)
            path.unlink(missing_ok=True)
            removed.append(path.name)
        finally:
            os.close(lock)
    return removed


def take_id() -> tuple[str, int]:
    """Returns an unused id and the descriptor that holds its lock."""
    LOCK_DIRECTORY.mkdir(mode=0o755, exist_ok=True)
    while True:
        identity = secrets.token_hex(4)
        path = LOCK_DIRECTORY / identity
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls another process may have removed the file as a stale one.
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return identity, lock
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(lock)


def remove(identity: str) -> None:
    """Kills all processes in a cluster's namespaces and deletes the namespaces."""
    directory = pathlib.Path("/run/netns")
    names = [path.name for path in directory.glob(f"{PREFIX}{identity}-*")]
    for name in names:
        listing = subprocess.run(
            ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
        )
        for word in listing.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(word), signal.SIGKILL)
    for name in names:
        # A namespace made by a cluster that is still being built may not be deletable at once.
        for _ in range(3):
            done = subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
            if done.returncode == 0 or not (directory / name).exists():
                break
            time.sleep(0.05)


def run_tool(argv: Sequence[str], text: str | None = None) -> str:
    """Runs a tool to its end and returns its output.

    Raises:
      ClusterError: the tool failed; the message quotes what it printed, and says what to do if this
        process lacks a right.
    """
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        refused = any(text in done.stderr for text in _REFUSALS)
        advice = _advice(_missing_rights()) if refused else ""
        raise ClusterError(f"{advice}{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _missing_rights() -> list[str]:
    """Returns the names of the capabilities that the lab needs and this process lacks."""
    status = pathlib.Path("/proc/self/status").read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for number, name in _RIGHTS.items() if not held >> number & 1]


def _advice(missing: Sequence[str]) -> str:
    """Returns the beginning of the message about a tool that the system refused."""
    if missing:
        return (
            f"emulated hosts need {' and '.join(_RIGHTS.values())}, and this process lacks "
            f"{' and '.join(missing)}: start a container with 'docker run --cap-add NET_ADMIN "
            "--cap-add SYS_ADMIN --security-opt apparmor=unconfined', or with --privileged; "
        )
    return (
        f"this process has {' and '.join(_RIGHTS.values())}, but the system forbids what emulated "
        "hosts need, perhaps by AppArmor or seccomp: start a container with 'docker run "
        "--privileged'; "
    )


def run_batch(argv: Sequence[str], commands: Sequence[str]) -> None:
    """Runs a tool that reads commands, such as ``ip -batch -``."""
    run_tool(argv, "\n".join(commands) + "\n")


def parse_proc_tables(text: str) -> dict[str, int]:
    """Parses /proc/net/snmp and netstat: per protocol, a line of names and one of numbers."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    for names, numbers in zip(lines[::2], lines[1::2]):
        protocol = names.split(":")[0]
        if protocol in ("Tcp", "TcpExt"):
            found.update(zip(names.split()[1:], map(int, numbers.split()[1:])))
    return found


@contextlib.contextmanager
def signals_held() -> Any:
    """Holds back signals that would interrupt this thread, until the context ends."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def signals_unwind() -> Any:
    """Lets SIGTERM and SIGHUP raise SystemExit, so that contexts remove what they have made.

    Only the first of them does: the second must not interrupt the removal.
    """
    came = []

    def unwind(number: int, _: object) -> None:
        if not came:
            came.append(number)
            sys.exit(128 + number)

    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in endings}
    mine = [each for each in endings if before[each] != signal.SIG_IGN]  # nohup ignores SIGHUP
    for each in mine:
        signal.signal(each, unwind)
    try:
        yield
    finally:
        for each in mine:
            signal.signal(each, before[each])
