"""Hostile files and servers: `herring status` and `herring flight` end soon, with one line."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flights
import statuses
from herring.command import cli
from herring.flight import record
from herring.observe import client, words
from herring.observe.metrics import prometheus
from herring.observe.schema import StatusError, parse

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    -0.5,
    10**400,
    -(10**30),
    1 << 63,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\x1b[2J\x9b2J\u202e\ud800\n\n",
    "x" * 3000,
    [],
    {},
    [[]],
    [-1, 10**30],
    {"a": {"b": [None]}},
)


def fields(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields where in a document there is something, for the first of each list."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from fields(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from fields(value[0], (*path, 0))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Returns a copy of a document with another value at one place."""
    whole = copy.deepcopy(document)
    at = whole
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return whole


def refused_or_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str], allowed: int
) -> None:
    """Runs the command, which succeeds or fails with one line, and harms no terminal."""
    status = cli.main(arguments)
    out, err = capsys.readouterr()
    assert status in (0, allowed), err
    assert (status == 0) == (err == ""), err
    assert len(err.splitlines()) <= 1 and len(err) < 2000, err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", out + err)


def flight() -> dict[str, Any]:
    """Returns the record of a job in which a rank is missing, with all kinds of entries."""
    one = flights.Flight()
    at = one.steps(2)
    one.call("allreduce 'x'", at, ranks=[0, 1, 2], ended=False)
    one.silent = ["rank 9: unreachable"]
    one.groups = [{"group": 1, "ranks": [0, 2]}]
    one.missing = [{"what": "allreduce 'x'", "for": 2.0, "ranks": [3]}]
    return one.document()


def test_no_value_of_a_flight_record_breaks_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight.json"
    document = flight()
    for place in fields(document):
        for value in HOSTILE:
            path.write_text(json.dumps(changed(document, place, value)))
            refused_or_shown(["flight", str(path), "--all"], capsys, 2)
    path.write_text(json.dumps(document))
    for options in ([], ["--json"], ["--rank", "3"], ["--trace", str(tmp_path / "trace")]):
        assert cli.main(["flight", str(path), *options]) == 0


def test_a_flight_record_that_was_cut_off_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight.json"
    whole = json.dumps(flight()).encode()
    for size in {*range(0, len(whole), 997), 1, len(whole) - 1}:
        path.write_bytes(whole[:size])
        assert cli.main(["flight", str(path)]) == 2
        error = capsys.readouterr().err
        assert "is not a flight record: not JSON" in error and len(error.splitlines()) == 1
        assert size == 0 or "it may have been cut off" in error or whole[size - 1] == ord("}")


@pytest.mark.parametrize(
    "content",
    [b"\x00" * 1000, b"\xff\xfe" * 1000, b"[" * 1_000_000, b'{"a":' * 1_000_000, b"1" * 100_000],
    ids=["zeros", "no text", "brackets", "braces", "digits"],
)
def test_garbage_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(content)
    refused_or_shown(["flight", str(path)], capsys, 2)
    refused_or_shown(["status", str(path)], capsys, 1)


def test_a_record_that_claims_many_ranks_takes_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flight.json"
    for size in (1 << 20, 10**12):
        path.write_text(json.dumps({**flight(), "size": size}))
        assert cli.main(["flight", str(path)]) == 2
        assert "'size' is " in capsys.readouterr().err


def test_files_without_end_are_refused_with_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    assert cli.main(["flight", str(huge)]) == 2
    assert cli.main(["status", str(huge)]) == 1
    error = capsys.readouterr().err
    assert "more than 1 GiB" in error and "is too large for a saved status" in error
    monkeypatch.setattr(record, "_MOST_BYTES", 1 << 20)
    assert cli.main(["flight", "/dev/zero"]) == 2
    assert "more than 1 GiB" in capsys.readouterr().err


# ---- servers ----


@contextlib.contextmanager
def serving(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """Gives the address of a server that treats each client as `talk` says."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.settimeout(20)
                with connection, contextlib.suppress(OSError):
                    talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


def test_no_value_of_a_status_breaks_what_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "status.json"
    document = statuses.stalled()
    document["groups"] = [{"group": 1, "size": 2}]
    document["missing"] = [{"what": "allreduce 'x'", "for": 2.0, "ranks": [3]}]
    shown = 0
    for place in fields(document):
        for value in HOSTILE:
            text = json.dumps(changed(document, place, value))
            try:
                status = parse(text, "the test")
            except StatusError as error:
                assert len(str(error)) < 1000 and str(error).isprintable()
                continue
            said = "".join(line[1] for line in words.lines(status)) + words.one_line(status)
            assert said.isprintable(), said
            prometheus(status)
            shown += 1
            if shown % 50 == 0:  # the tables take long
                path.write_text(text)
                refused_or_shown(["status", str(path), "--all"], capsys, 1)
    assert shown > 300


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b" ")
        time.sleep(0.01)


def ask_again(connection: socket.socket) -> None:
    while connection.recv(1000):
        connection.sendall(b"prove " + b"0" * 64 + b"\n")


@pytest.mark.parametrize("talk", [drip, ask_again], ids=["slow", "asks"])
def test_a_server_that_does_not_come_to_an_end_is_left_in_time(
    talk: Callable[[socket.socket], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HERRING_SECRET", "5a" * 32)
    with serving(talk) as where:
        assert cli.main(["status", where, "--timeout", "300ms"]) == 1
    assert "has not answered in 0.3 s" in capsys.readouterr().err


def test_a_server_that_pours_is_left_before_memory_is_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_MOST_BYTES", 1 << 22)
    sent = 0

    def pour(connection: socket.socket) -> None:
        nonlocal sent
        while True:
            sent += connection.send(b" " * (1 << 16))

    with serving(pour) as where:
        assert cli.main(["status", where, "--timeout", "60s"]) == 1
    assert "does not end its answer" in capsys.readouterr().err
    assert sent < 1 << 26


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\xff\xfe\x00", "did not answer with text"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "it is not JSON"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is not JSON"),
        (b"error: \x1b[2Jevil\nsecond line " + b"x" * 100_000, "  evil second line"),
        (b"prove nothing\n", "it is not JSON"),
        (b"", "is about to end"),
    ],
)
def test_a_server_that_answers_garbage_is_told_of_in_one_line(
    answer: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(answer)

    with serving(talk) as where:
        for option in ("--json", "--all"):
            # A client asks again until its time is over if the connection ends without an answer.
            timeout = "60s" if answer else "2s"
            assert cli.main(["status", where, option, "--timeout", timeout]) == 1
            error = capsys.readouterr().err
            assert said.strip() in error and len(error.splitlines()) == 1 and len(error) < 2000
            assert "\x1b" not in error


def test_a_job_that_ends_the_connection_is_named_so_though_the_last_attempt_is_too_slow(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attempts = 0

    def talk(connection: socket.socket) -> None:
        nonlocal attempts
        attempts += 1
        while attempts > 1 and connection.recv(1000):
            pass

    with serving(talk) as where:
        assert cli.main(["status", where, "--timeout", "2s"]) == 1
    assert "is about to end" in capsys.readouterr().err


@pytest.mark.parametrize("name", [b"\0", b"/tmp/\x1b[2J", b"a\nb"])
def test_a_record_whose_name_is_no_name_is_an_error(
    name: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(name + b"\n")

    with serving(talk) as where:
        refused_or_shown(["status", where, "--record"], capsys, 1)
