"""`herring run` when its own output, or what it was started by, is not as it should be."""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launched import HERRING, LIMIT, gone, pids_of

PRINTS = "import time; print('x' * 500_000, flush=True); time.sleep(1000)"


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*HERRING, "run", *arguments], stdin=subprocess.DEVNULL, start_new_session=True, **options
    )


def full(pipe: int, job: subprocess.Popen) -> None:
    """Returns when a pipe takes nothing more, or the job has ended before that."""
    while select.select([], [pipe], [], 0)[1] and job.poll() is None:
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["timeout", "SIGTERM"])
def test_a_reader_that_has_stopped_reading_stops_nothing_else(how: str) -> None:
    """The reader stops, like a terminal after Ctrl-S or a paused pager."""
    ours, theirs = os.pipe()
    limit = ["--timeout", "5"] if how == "timeout" else []
    command = ["-n", "1", "--grace", "0.5", *limit, "--", sys.executable, "-c", PRINTS]
    job = start(*command, stdout=theirs, stderr=theirs)
    try:
        full(theirs, job)
        if how == "SIGTERM":
            job.send_signal(signal.SIGTERM)
        assert job.wait(LIMIT) == (124 if how == "timeout" else 128 + signal.SIGTERM)
    finally:
        job.kill()
        job.wait()
        os.close(theirs)
        os.close(ours)


def test_a_slow_reader_gets_everything() -> None:
    script = "for i in range(9000): print(i, 'x' * 99)"
    job = start("-n", "2", "--", sys.executable, "-c", script, stdout=subprocess.PIPE)
    full(job.stdout.fileno(), job)
    lines = job.communicate(timeout=LIMIT)[0].decode().splitlines()
    assert job.returncode == 0
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert [int(line.split()[1]) for line in mine] == list(range(9000))


def test_signals_that_were_blocked_by_who_started_it() -> None:
    """Else nothing would tell that ranks have ended, and they could not be told to."""
    blocked = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        ends = start("-n", "2", "--", "bash", "-c", "exec >/dev/null 2>&1; exec sleep 0.2")
        stays = start("-n", "1", "--", "bash", "-c", "echo there; exec sleep 1000", stdout=-1)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    try:
        assert ends.wait(LIMIT) == 0
        assert stays.stdout.readline()
        stays.send_signal(signal.SIGTERM)
        assert stays.wait(LIMIT) == 128 + signal.SIGTERM
    finally:
        for job in (ends, stays):
            job.kill()
            job.wait()
        stays.stdout.close()


SAVES = """
trap 'sleep 0.3; echo saved > "$0"; exit 0' HUP TERM
echo "pid=$$"
while :; do sleep 0.05; done
"""


def test_a_terminal_that_is_closed_leaves_time_to_save(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        command = [*HERRING, "run", "-n", "1", "--", "bash", "-c", SAVES, str(tmp_path / "f")]
        os.execv(command[0], command)
    output = b""
    while b"pid=" not in output or not output.endswith(b"\n"):
        output += os.read(terminal, 4096)
    os.close(terminal)
    os.waitpid(child, 0)
    assert (tmp_path / "f").read_text() == "saved\n"
    assert gone(pids_of([output.decode()]))


def test_the_two_signals_of_a_session_that_ends_are_one(tmp_path: Path) -> None:
    job = start("-n", "1", "--", "bash", "-c", SAVES, str(tmp_path / "f"), stdout=-1, stderr=-1)
    assert job.stdout.readline()
    job.send_signal(signal.SIGTERM)
    job.send_signal(signal.SIGHUP)
    assert b"second signal" not in job.communicate(timeout=LIMIT)[1]
    assert (tmp_path / "f").read_text() == "saved\n"


def test_files_that_cannot_be_written_are_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "out" / "rank.1" / "stdout").mkdir(parents=True)
    ran = tmp_path / "ran"
    command = ["-n", "2", "--output-filename", str(tmp_path / "out"), "--", "touch", str(ran)]
    job = start(*command, stderr=subprocess.PIPE)
    said = job.communicate(timeout=LIMIT)[1].decode()
    assert job.returncode != 0 and "rank.1/stdout: Is a directory" in said, said
    assert "Traceback" not in said and not ran.exists()


def test_a_full_disk_ends_the_copy_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    job = start(
        *("-n", "1", "--output-filename", str(tmp_path), "--", "bash", "-c", "echo a; echo b"),
        stdout=subprocess.PIPE,
    )
    said = job.communicate(timeout=LIMIT)[0].decode()
    assert job.returncode == 0 and "[0] a\n[0] b\n" in said
    assert said.count("No space left on device; nothing more goes there") == 1


def test_output_that_cannot_be_written_stops_the_job_with_a_message() -> None:
    with open("/dev/full", "wb") as nowhere:
        job = start(
            *("-n", "1", "--", "bash", "-c", "echo a; exec sleep 1000"),
            stdout=nowhere,
            stderr=subprocess.PIPE,
        )
        said = job.communicate(timeout=LIMIT)[1].decode()
    assert job.returncode == 1 and "standard output: No space left on device" in said, said
    assert "Traceback" not in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_descriptors_may_be_closed(tmp_path: Path, closed: str) -> None:
    """What is opened next must not take their place."""
    ran = tmp_path / "ran"
    command = [*HERRING, "run", "-n", "1", "--", "bash", "-c", f"echo a; echo b >&2; touch {ran}"]
    shell = f"exec {shlex.join(command)} {closed}"
    assert subprocess.run(["bash", "-c", shell], timeout=LIMIT).returncode == 0
    assert ran.exists()
