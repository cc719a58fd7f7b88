"""What `herring run` says of a process that the kernel killed because memory was short."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from herring.base import cgroup
from herring.launch.shortage import Shortage
from launched import HERRING, LIMIT, no_ssh

LIMIT_BYTES = 150_000_000
# The kernel prefers this process to others, and a page counts only when it is written to.
HUNGRY = """
import os, signal
if os.environ["RANK"] == "1":
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    held = [b"x" * (1 << 20) for _ in range(1000)]
signal.pause()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with little memory; skips the test where this process may not make one."""
    for above in cgroup._folders(None, None, "memory"):
        folder = above / f"herring-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            names = ("memory.max", "memory.limit_in_bytes")
            name = next((name for name in names if (folder / name).exists()), None)
            if name is not None:
                (folder / name).write_text(str(LIMIT_BYTES))
                for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
                    if (folder / swap).exists():
                        (folder / swap).write_text("0" if "max" in swap else str(LIMIT_BYTES))
                yield folder
                return
        finally:
            deadline = time.monotonic() + LIMIT
            while folder.exists() and time.monotonic() < deadline:
                with contextlib.suppress(OSError):  # the last process may not be quite gone
                    folder.rmdir()
    pytest.skip("this user may not make control groups for memory")


def run_in(group: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HERRING, "run", *arguments],
        preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


@pytest.mark.parametrize("where", ["here", "far", "shell"])
def test_memory_was_short(where: str, group: Path, tmp_path: Path) -> None:
    options = ["-n", "2"]
    if where == "far":
        options = ["-H", "localhost:1,far:1", "--ssh-command", no_ssh(tmp_path)]
        options += ["--network-interface", "lo"]
    command = [sys.executable, "-c", HUNGRY]
    if where == "shell":
        command = ["sh", "-c", f'{sys.executable} -c "$0"; exit $?', HUNGRY]
    done = run_in(group, *options, "--", *command)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    how = "exited with status 137" if where == "shell" else r"was killed by SIGKILL \(signal 9\)"
    short = (
        rf"{how} because memory was short: its control group may use 150 MB, and it had used up to "
        r"1?\d\d(\.\d)? MB itself"
    )
    assert re.search(
        rf"rank 1 \(process \d+( on far)?\) {short}; stopping the other 1", done.stderr
    )
    if where != "shell":
        assert re.search(rf"the cause: rank 1 .* failed first, at \S+: it {short}$", done.stderr)


def test_memory_was_not_short(group: Path) -> None:
    done = run_in(group, "-n", "2", "--", "sh", "-c", "[ $RANK = 0 ] || kill -9 $$; exec sleep 100")
    assert done.returncode == 128 + signal.SIGKILL
    assert "was killed by SIGKILL (signal 9); stopping the other 1" in done.stderr
    assert "memory" not in done.stderr


def test_a_kernel_that_does_not_count_is_no_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([None, None, 3, 3, 4])
    monkeypatch.setattr(cgroup, "oom_kills", lambda: next(counts))
    shortage = Shortage()
    assert [shortage.look() for _ in range(4)] == [False, False, False, True]
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    assert re.fullmatch(
        r" because memory was short: the machine has .* [GT]B, and it had used up to 5 MB itself",
        shortage.explain(5_000_000),
    )
