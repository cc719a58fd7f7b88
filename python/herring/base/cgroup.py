"""What the control groups of this process allow, and what became of processes in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_VMSTAT = Path("/proc/vmstat")
_NO_LIMIT = 1 << 60  # version 1 has a large number for "no limit"


def cores(root: Path | None = None, membership: str | None = None) -> float | None:
    """Returns the number of cores that the control groups of this process allow together, or None.

    A limit of any group above the process's own counts, too.

    Args:
        root: The folder at which control groups are mounted; by default ``/sys/fs/cgroup``.
        membership: The content of ``/proc/self/cgroup``; by default that of this process.
    """
    found = []
    for folder in _folders(root, membership, "cpu"):
        words = _text(folder / "cpu.max").split()
        if not words:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [_text(folder / name).strip() for name in names]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def memory_limit(root: Path | None = None, membership: str | None = None) -> int | None:
    """Returns the bytes that the control groups of this process allow, or None."""
    found = []
    for folder in _folders(root, membership, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                found.append(int(text))
    return min(found, default=None)


def oom_kills(
    root: Path | None = None, membership: str | None = None, vmstat: Path = _VMSTAT
) -> int | None:
    """Returns how many processes the kernel has killed for lack of memory, or None.

    They are those of this process's control group, and of groups inside it. Where the kernel does
    not count by group, they are those of the machine.

    Args:
        root: See `cores`.
        membership: See `cores`.
    """
    for folder in _folders(root, membership, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            count = _counter(folder / name)
            if count is not None:
                return count
    return _counter(vmstat)


def _counter(path: Path) -> int | None:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def _folders(root: Path | None, membership: str | None, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control group and those above it, from the inside."""
    if membership is None:
        membership = _text(_MEMBERSHIP)
    root = _ROOT if root is None else root
    for line in membership.splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controller if controllers else root  # version 2 names no controllers
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
