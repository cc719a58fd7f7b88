"""`herring status`: finding jobs, asking them, and what people are told."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import statuses
import warm
from herring.base import user_folder
from herring.command import cli
from herring.observe import client, words
from herring.observe.schema import SCHEMA, StatusError
from status_server import StatusServer, short_folder

STATUS = [sys.executable, "-m", "herring.command.cli", "status"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of this user's sockets; no other folder is looked at."""
    with short_folder() as runtime:
        own = runtime / "herring"
        own.mkdir(mode=0o700)
        monkeypatch.setattr(user_folder, "candidates", lambda _: [own])
        yield own


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(["status", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_only_job_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        status, out, err = run(capsys)
    assert (status, err, server.asked) == (0, "", ["json"])
    assert out.startswith("job 'resnet': 4 ranks on 2 nodes, 2 servers, 4 hosts, running for 12 m")
    assert "7200 steps, 9.81 per second" in out
    assert "a step takes 102 ms (97 ms to 115 ms)" in out
    assert "Compute binds, 81 % of a step." in out
    assert out.endswith("No rank or server stands out.\n")


def test_as_many_lines_as_fit_are_not_cut() -> None:
    found = [line for i in range(17) for line in (("", f"rank {i}"), ("stack", "train.py"))]
    assert words._cut(found[:-2], "--all shows them") == found[:-2]
    assert words._cut(found, "--all shows them") == [
        *found[:-2],
        ("", "... and 1 more: --all shows them"),
    ]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [("aab", "ranks 0-2 (a, b)"), ("abc", "ranks 0-2 (a, b, c)"), ("abcd", "ranks 0-3 (4 hosts)")],
)
def test_up_to_three_hosts_of_ranks_are_named(hosts: str, expected: str) -> None:
    ranks = [{"rank": i, "host": host, "pid": 1} for i, host in enumerate(hosts)]
    assert words._who(ranks) == expected


def test_several_jobs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        StatusServer(statuses.healthy(job="bert"), folder / "bert-8.sock"),
        StatusServer(statuses.late(), folder / "resnet-7.sock"),
    ):
        status, out, _ = run(capsys)
        assert status == 0
        assert "job 'bert': 4 ranks" in out and "job 'resnet': 8 ranks" in out
        assert f"--job NAME or its path: herring status {folder}/bert-8.sock" in out
        assert run(capsys, "--job", "resnet")[1].startswith("job 'resnet'")
        status, out, err = run(capsys, "--json")
        assert (status, out) == (2, "") and "bert-8.sock" in err
        status, out, err = run(capsys, "--job", "gpt")
        assert (status, out) == (1, "") and "'gpt'; there are: bert, resnet" in err


def test_jobs_that_are_gone_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = socket.socket(socket.AF_UNIX)
    gone.bind(str(folder / "old-1.sock"))
    gone.close()
    status, out, err = run(capsys)
    assert (status, out) == (1, "")
    assert f"skipped {folder}/old-1.sock: its job is gone" in err
    assert "no job of this user runs on this machine" in err and "HOST:PORT" in err
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock"):
        assert run(capsys)[0] == 0


def test_a_folder_that_others_may_enter_is_not_trusted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock"):
        folder.chmod(0o755)
        status, _, err = run(capsys)
        folder.chmod(0o700)
    assert status == 1 and f"skipped {folder}: not a folder of this user with mode 0700" in err


def test_the_folders_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid()
    usual = [Path(f"/run/user/{user}/herring"), Path(f"/tmp/herring-{user}")]
    assert user_folder.candidates({"XDG_RUNTIME_DIR": "/elsewhere"}) == [
        Path("/elsewhere/herring"),
        *usual,
    ]
    assert user_folder.candidates({}) == usual


def test_a_job_at_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.late()) as server:
        status, out, _ = run(capsys, server.where)
    assert status == 0 and "rank 5 (node03, pid 41205)" in out


def test_a_job_that_asks_for_the_secret(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = b"0123456789abcdef" * 4
    monkeypatch.delenv("HERRING_SECRET", raising=False)
    monkeypatch.delenv("HERRING_SECRET_FILE", raising=False)
    with StatusServer(statuses.healthy(), secret=secret) as server:
        status, _, err = run(capsys, server.where)
        assert status == 1 and "asks for the job's secret: set HERRING_SECRET_FILE" in err
        file = tmp_path / "secret"
        file.write_bytes(secret + b"\n")
        file.chmod(0o600)
        monkeypatch.setenv("HERRING_SECRET_FILE", str(file))
        assert run(capsys, server.where)[0] == 0
        file.write_bytes(secret[::-1])
        status, _, err = run(capsys, server.where)
        assert status == 1 and "the job's secret differs" in err


def test_json_is_printed_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent = {**statuses.late(), "new": [1, None]}
    with StatusServer(sent, folder / "resnet-7.sock"):
        status, out, _ = run(capsys, "--json")
    assert (status, json.loads(out)) == (0, sent)


def test_a_saved_status_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "status.json"
    saved.write_text(json.dumps(statuses.late()), encoding="utf-8")
    status, out, _ = run(capsys, str(saved), "--all")
    assert status == 0
    assert re.search(r"^rank  host +state ", out, re.MULTILINE)
    assert len(re.findall(r"^ +\d  node0\d  computing ", out, re.MULTILINE)) == 8
    assert re.search(r"^ +1  dedicated  server02  .*48211 .* link", out, re.MULTILINE)
    status, _, err = run(capsys, str(saved), "--record")
    assert status == 1 and "is a saved status, and no job" in err


def test_a_flight_record_is_asked_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = {"record": "/data/flight-resnet.json\n"}
    with StatusServer(statuses.healthy(), folder / "r-7.sock", answers=answers) as server:
        assert run(capsys, "--record")[:2] == (0, "/data/flight-resnet.json\n")
        assert server.asked == ["record"]
    with StatusServer(statuses.healthy()) as server:
        status, out, err = run(capsys, server.where, "--record")
    assert (status, out) == (1, "") and "there is no command 'record'" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--watch soon", ["--watch", "'soon'", "20ms"]),
        ("--watch 0", ["--watch", "'0'"]),
        ("--timeout never", ["--timeout", "'never'"]),
        ("--timeout 1e12", ["--timeout", "'1e12'", "up to 24h"]),
        ("--watch 1e12", ["--watch", "'1e12'", "up to 24h"]),
        ("a:1 --job b", ["WHERE and --job"]),
        ("--json --metrics", ["--metrics", "--json"]),
        ("--dashboard a:1", ["--dashboard"]),
        ("a:1 b:2", ["'b:2'", "too many"]),
        ("--jsn", ["--jsn", "'--json'?"]),
    ],
)
def test_wrong_usage(arguments: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(["status", *arguments.split()])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    assert captured.err.startswith("herring status: ")
    for word in words:
        assert word in captured.err


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("/nowhere/resnet-7.sock", "/nowhere/resnet-7.sock is not there: its job has ended"),
        ("resnet", "resnet is neither the socket of a job nor HOST:PORT"),
        ("localhost:99999", "99999 is not a port"),
        ("/dev/null", "/dev/null is neither a socket nor a file"),
        ("no.such.host.invalid:9400", "'no.such.host.invalid' has no address"),
    ],
)
def test_a_wrong_place(where: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, where)
    assert (status, out) == (1, "")
    assert said in err and len(err.splitlines()) == 1


def test_nobody_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    status, _, err = run(capsys, f"127.0.0.1:{port}")
    assert status == 1 and f"nobody listens at 127.0.0.1:{port}: the job has ended" in err


def test_a_job_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.healthy(), silent=True) as server:
        status, _, err = run(capsys, server.where, "--timeout", "100ms")
    assert status == 1 and "has not answered in 0.1 s" in err and "--timeout" in err


def test_a_job_that_ends_meanwhile(capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.healthy(), answers={"json": ""}) as server:
        status, _, err = run(capsys, server.where, "--timeout", "300ms")
    assert status == 1 and "the job is about to end" in err


def test_a_client_that_loses_its_place_to_strangers_asks_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with StatusServer(statuses.healthy(), dropped=3) as server:
        status, out, err = run(capsys, server.where, "--timeout", "60s")
    assert status == 0 and "resnet" in out, err


@pytest.mark.skipif(os.getuid() == 0, reason="root may connect to every socket")
def test_a_socket_of_another_user(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        os.chmod(server.where, 0)
        status, _, err = run(capsys, server.where)
    assert status == 1 and "permission denied" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it has no 'schema'"),
        ('{"schema": 1}', "it has no 'schema'"),
        ('{"schema": "herring-status-2", "herring": "9.1"}', "'herring-status-2', but Herring "),
        (f'{{"schema": "{SCHEMA}", "ranks": {{}}}}', "its 'ranks' is not a list"),
        (f'{{"schema": "{SCHEMA}", "ranks": [{{"late": 3}}]}}', "its 'ranks[0].late' is not an o"),
        (f'{{"schema": "{SCHEMA}", "steps": {{"count": true}}}}', "its 'steps.count' is not an i"),
    ],
)
def test_what_is_not_a_status(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with StatusServer({}, answers={"json": text}) as server:
        for option in ("--json", "--metrics", "--all"):
            status, out, err = run(capsys, server.where, option)
            assert (status, out) == (1, "")
            assert said in err and len(err.splitlines()) == 1


def test_watching_without_a_terminal_repeats_the_text(folder: Path) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        watch = warm.Popen(
            [*STATUS, server.where, "--watch", "10ms"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert watch.stdout is not None
        seen = 0
        for line in watch.stdout:
            seen += line.startswith("job 'resnet'")
            if seen == 3:
                break
    out, err = watch.communicate(timeout=600)
    assert (watch.returncode, err) == (0, "")
    assert re.search(r"^job 'resnet': .* has ended \(.* gone.*\)$", out, re.MULTILINE), out


def test_watching_without_a_terminal_repeats_no_old_status(folder: Path) -> None:
    path = folder / "resnet-7.sock"
    watch = [*STATUS, str(path), "--watch", "10ms", "--timeout", "200ms"]
    with (
        StatusServer(statuses.healthy(), path),
        warm.Popen(watch, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if "stands out" in line:
                break
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(f"{path}.new")
            silent.listen(8)
            os.rename(f"{path}.new", path)
            # On a busy machine the first server, too, may not have answered in time.
            silences: list[bool] = []
            for line in process.stdout:
                silences.append("has not answered in 0.2 s" in line)
                if (all(silences[-3:]) and len(silences) > 3) or sum(silences) > 50:
                    break
            process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0
    assert all(silences[-3:]), "an old status was repeated"


def test_watching_goes_on_with_the_next_generation(folder: Path) -> None:
    def named(job: str) -> dict[str, Any]:
        return statuses.healthy(job=job)

    watch = [*STATUS, str(folder / "el.1-7.sock"), "--watch", "10ms"]
    with socket.socket(socket.AF_UNIX) as stale:  # of a job that was killed
        stale.bind(str(folder / "el.9-6.sock"))
    with StatusServer(named("el.1"), folder / "el.1-7.sock"):
        process = warm.Popen(watch, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            if line.startswith("job 'el.1'"):
                break
    for line in process.stdout:
        if "waiting for the next generation" in line:
            break
    with StatusServer(named("el.3"), folder / "el.3-8.sock"):
        for line in process.stdout:
            seen.append(line)
            if line.startswith("job 'el.3'"):
                break
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "has ended" not in "".join(seen) + rest
    assert any(line.rstrip().endswith(": the next generation") for line in seen), seen


def test_watching_an_address_goes_on_with_the_next_generation() -> None:
    def named(job: str) -> dict[str, Any]:
        return statuses.healthy(job=job)

    def until(text: str) -> list[str]:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if text in line:
                return seen
        raise AssertionError(f"{text!r} is not in {seen}")

    with StatusServer(named("el.1")) as first:
        watch = [*STATUS, first.where, "--watch", "10ms"]
        process = warm.Popen(watch, stdout=subprocess.PIPE, text=True)
        until("job 'el.1'")
    until("waiting for the next generation")
    with StatusServer(named("other.2"), port=first.port):
        until("is the address of another job now")
    with StatusServer(named("el.2"), port=first.port) as second:
        assert any(": the next generation" in line for line in until("job 'el.2'"))
        second.status = named("el.3")  # it began so soon that nobody missed the one before
        assert any(": the next generation" in line for line in until("job 'el.3'"))
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and "has ended" not in rest


def test_a_job_whose_next_generation_does_not_come_has_ended(folder: Path) -> None:
    path = folder / "el.1-7.sock"
    with StatusServer(statuses.healthy(), path) as server:
        terminal = Terminal(server.where, "--watch", "20ms")
        terminal.expect("q ends this view")
    terminal.expect("waiting for the next generation")
    assert terminal.status() == 0
    assert "has ended" in terminal.text and "no later generation has begun" in terminal.text


class Terminal:
    """`herring status` with a terminal of 100 columns and 30 lines."""

    def __init__(self, *arguments: str, without_input: bool = False, **environment: str) -> None:
        self.process, self.screen = pty.fork()
        if self.process == 0:
            if without_input:
                os.close(0)
            sized = {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color", "LANG": "C.UTF-8"}
            os.execve(sys.executable, [*STATUS, *arguments], {**os.environ, **sized, **environment})
        self.text = ""

    def expect(self, text: str) -> None:
        """Reads until a text has been shown since the last call."""
        seen, end = "", time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < end, f"no {text!r} in {seen[-2000:]!r}"
            if not select.select([self.screen], [], [], 1)[0]:
                continue
            try:
                more = os.read(self.screen, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"it ended without {text!r}: {seen[-2000:]!r}") from None
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", more)
        self.text = seen

    def status(self) -> int:
        """Returns the exit status; reads what is still shown."""
        while True:
            try:
                more = os.read(self.screen, 65536)
            except OSError:
                break
            self.text += more.decode(errors="replace")
            if not more:
                break
        os.close(self.screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_watching_on_a_terminal(folder: Path) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        terminal = Terminal("--watch", server.where)
        terminal.expect("q ends this view")
        for part in ("102 ms", "Compute binds", "wait for ranks", "█", "node02"):
            assert part in terminal.text, part
        server.status = statuses.late()
        terminal.expect("rank 5 (node03), 23 % of a step")
        terminal.expect("train.py:40 in load")
        os.write(terminal.screen, b"q")
        assert terminal.status() == 0


def test_watching_ends_with_control_c(folder: Path) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        terminal = Terminal(server.where, "--watch", "30s")
        terminal.expect("q ends this view")
        os.write(terminal.screen, b"\x03")
        assert terminal.status() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_the_view_leaves_the_terminal_as_it_was(
    folder: Path, number: signal.Signals
) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        terminal = Terminal(server.where, "--watch", "30s")
        before = termios.tcgetattr(terminal.screen)
        terminal.expect("q ends this view")
        assert termios.tcgetattr(terminal.screen)[3] != before[3]
        kept = os.dup(terminal.screen)
        os.kill(terminal.process, number)
        assert terminal.status() == -number
        assert termios.tcgetattr(kept) == before
        os.close(kept)
        assert "\x1b[?1049l" in terminal.text and "\x1b[?25h" in terminal.text
        assert "Traceback" not in terminal.text


def test_watching_without_an_input(folder: Path) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        terminal = Terminal(server.where, "--watch", "20ms", without_input=True)
        terminal.expect("q ends this view")
        os.kill(terminal.process, signal.SIGINT)
        assert terminal.status() == 0, terminal.text


def test_watching_ends_with_the_job(folder: Path) -> None:
    server = StatusServer(statuses.healthy(), folder / "resnet-7.sock")
    with server:
        terminal = Terminal(server.where, "--watch", "20ms")
        terminal.expect("q ends this view")
    assert terminal.status() == 0
    assert "has ended" in terminal.text


def test_watching_goes_on_while_a_job_is_slow_to_answer(folder: Path) -> None:
    path = folder / "resnet-7.sock"
    with StatusServer(statuses.healthy(), path):
        terminal = Terminal(str(path), "--watch", "20ms", "--timeout", "300ms")
        terminal.expect("q ends this view")
        # From here on, connections wait in the queue of a socket that nobody accepts from.
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(f"{path}.new")
            silent.listen(8)
            os.rename(f"{path}.new", path)
            terminal.expect("has not answered in 0.3 s")
            os.write(terminal.screen, b"q")
            assert terminal.status() == 0


def test_a_dumb_terminal_gets_text(folder: Path) -> None:
    with StatusServer(statuses.healthy(), folder / "resnet-7.sock") as server:
        terminal = Terminal(server.where, "--watch", "20ms", TERM="dumb")
        terminal.expect("stands out")
        os.kill(terminal.process, signal.SIGINT)
        assert terminal.status() == 0
        assert "\x1b[?1049h" not in terminal.text


def test_an_error_of_a_status_is_an_error_of_herring() -> None:
    from herring.errors import HerringError

    with pytest.raises(HerringError, match="has ended"):
        client.endpoint("/nowhere/a-1.sock")
    assert issubclass(StatusError, HerringError)
