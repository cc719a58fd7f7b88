"""Which rank of `herring run` reads its input, or has its terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from launched import HERRING, LIMIT, run, shell


def test_rank_0_reads_input(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("first line\n")
    with path.open() as stdin:
        done = run("-n", "2", *shell("read x; echo got=$x"), stdin=stdin)
    assert sorted(done.stdout.splitlines()) == ["[0] got=first line", "[1] got="]


def test_another_rank_reads_input(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text("first line\n")
    with path.open() as stdin:
        done = run("-n", "2", "--stdin", "1", *shell("read x; echo got=$x"), stdin=stdin)
    assert sorted(done.stdout.splitlines()) == ["[0] got=", "[1] got=first line"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-n", "2", "--stdin", "2"], "--stdin 2 is not valid: allowed"),
        (
            ["-H", "localhost:1,far:1", "--ssh-command", "true", "--stdin", "1"],
            "--stdin 1: rank 1 runs on far, and only a rank on this machine",
        ),
    ],
)
def test_a_rank_that_cannot_read_input_is_refused(options: list[str], said: str) -> None:
    done = run(*options, *shell("echo started"))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize("piped", [False, True], ids=["terminal", "pipe"])
def test_a_rank_debugs_at_the_terminal(piped: bool) -> None:
    """Rank 1 has the terminal as its input; what it shows goes there, or into a pipe."""
    code = "import os, pdb; x = 41\nif os.environ['RANK'] == '1': pdb.set_trace(header='ready\\n')"
    outer, inner = pty.openpty()
    before = termios.tcgetattr(inner)
    process = subprocess.Popen(
        [*HERRING, "run", "-n", "2", "--stdin", "1", "--", sys.executable, "-c", code],
        stdin=inner,
        stdout=subprocess.PIPE if piped else inner,
        stderr=subprocess.STDOUT if piped else inner,
        env={**os.environ, "TERM": "dumb"},
        start_new_session=True,
    )
    shown = b""
    # Before the prompt, the terminal shows what is typed, and the line shows it again.
    lines = [(b"ready" if piped else b"(Pdb) ", b"x + 1\n"), (b"42", b"c\n")]
    source = process.stdout.fileno() if piped else outer
    try:
        while select.select([source], [], [], LIMIT)[0]:
            data = os.read(source, 65536)
            shown += data
            if lines and lines[0][0] in shown:
                os.write(outer, lines.pop(0)[1])
            if not data or (not piped and b"none of the 2 workers" in shown):
                break
        assert process.wait(LIMIT) == 0, shown
        assert b"42" in shown
        assert shown.count(b"x + 1") == (0 if piped else 1)  # it is shown once
        assert termios.tcgetattr(inner) == before
    finally:
        process.kill()
        process.wait()
        os.close(inner)
        os.close(outer)
