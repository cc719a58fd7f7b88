"""Merging of output: prefixes, carriage returns, escape sequences in any pieces."""

from __future__ import annotations

import os
import re

import pytest

from herring.launch.output import Sink, Source, prefix

TIME = re.compile(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}")


class Recorder(Sink):
    """A sink that keeps what it would write."""

    def __init__(self, terminal: bool) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        super().__init__(write, terminal)
        self._read = read

    def taken(self) -> bytes:
        try:
            return os.read(self._read, 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self._read)
        os.close(self.fd)


@pytest.fixture(params=[False, True], ids=["file", "terminal"])
def sink(request: pytest.FixtureRequest) -> Recorder:
    recorder = Recorder(request.param)
    yield recorder
    recorder.close()


@pytest.fixture
def terminal() -> Recorder:
    recorder = Recorder(True)
    yield recorder
    recorder.close()


def in_pieces(source: Source, data: bytes, size: int) -> None:
    for start in range(0, len(data), size):
        source.feed(data[start : start + size])
    source.finish()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_lines(sink: Recorder, size: int) -> None:
    in_pieces(Source(sink, b"[1] "), b"one\ntwo\r\n\nlast", size)
    assert sink.taken() == b"[1] one\n[1] two\n[1] \n[1] last\n"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_progress_bar_of_another_rank_shows_its_last_state_on_a_terminal(
    terminal: Recorder, size: int
) -> None:
    in_pieces(Source(terminal, b"[1] "), b"\r10%\r50%\r99%\ndone\n", size)
    assert terminal.taken() == b"[1] 99%\n[1] done\n"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_progress_bar_into_a_file_keeps_every_state(size: int) -> None:
    sink = Recorder(False)
    in_pieces(Source(sink, b"[1] "), b"\r10%\r50%\r99%\ndone\n", size)
    assert sink.taken() == b"[1] 10%\r[1] 50%\r[1] 99%\n[1] done\n"
    sink.close()


def test_a_line_of_another_rank_does_not_overwrite_a_progress_bar_in_a_file() -> None:
    sink = Recorder(False)
    Source(sink, b"[0] ").feed(b"10%\r20%")
    Source(sink, b"[1] ").feed(b"line\n")
    assert sink.taken() == b"[0] 10%\r\n[1] line\n"
    sink.close()


def test_a_line_without_end_is_cut_in_the_end(sink: Recorder) -> None:
    source = Source(Sink(os.open(os.devnull, os.O_WRONLY), sink.terminal), b"")
    for _ in range(200):
        source.feed(b"x" * 65536)
    assert len(source._pending) < 1 << 21
    os.close(source.sink.fd)


LIVE = [
    (b"hello\nworld", b"[0] hello\n[0] world\n"),
    (b"\r10%\r20%\n", b"\r[0] 10%\r[0] 20%\n"),
    (b"\n\nx\n", b"[0]\n[0]\n[0] x\n"),
    (b"a\r\nb\r\n", b"[0] a\r\n[0] b\r\n"),
    # Erasing and moving come before the prefix, colours after it.
    (b"\r\x1b[2K\x1b[32mbar\x1b[0m\n", b"\r\x1b[2K[0] \x1b[32mbar\x1b[0m\n"),
    (b"a\nb\r\x1b[1Ac\n", b"[0] a\n[0] b\r\x1b[1A[0] c\n"),
    (b"\x1b]0;title\x07text\n", b"\x1b]0;title\x07[0] text\n"),
    (b"\x1b[?25lx\x1b[?25h\n", b"\x1b[?25l[0] x\x1b[?25h\n"),
]


@pytest.mark.parametrize(("data", "expected"), LIVE)
def test_live(terminal: Recorder, data: bytes, expected: bytes) -> None:
    in_pieces(Source(terminal, b"[0] ", live=True), data, len(data))
    assert terminal.taken() == expected


@pytest.mark.parametrize(("data", "expected"), [each for each in LIVE if b"\r\n" not in each[0]])
def test_live_in_single_bytes(terminal: Recorder, data: bytes, expected: bytes) -> None:
    in_pieces(Source(terminal, b"[0] ", live=True), data, 1)
    assert terminal.taken() == expected


def test_others_go_above_the_live_line(terminal: Recorder) -> None:
    live, other = Source(terminal, b"[0] ", live=True), Source(terminal, b"[1] ")
    live.feed(b"\r\x1b[2Kloss 0.5")
    assert terminal.taken() == b"\r\x1b[2K[0] loss 0.5"
    other.feed(b"hel")
    assert terminal.taken() == b""
    other.feed(b"lo\n")
    assert terminal.taken() == b"\r\x1b[2K[1] hello\n[0] loss 0.5"
    live.feed(b" 99%\n")
    assert terminal.taken() == b" 99%\n"
    other.feed(b"bye\n")
    assert terminal.taken() == b"[1] bye\n"


def test_a_bar_that_returns_at_its_end_is_put_back(terminal: Recorder) -> None:
    live, other = Source(terminal, b"", live=True), Source(terminal, b"")
    live.feed(b"10%\r")
    other.feed(b"line\n")
    assert terminal.taken() == b"10%\r\r\x1b[2Kline\n10%\r"
    live.finish()
    assert terminal.taken() == b"\n"


def test_an_escape_that_never_ends_is_shown(terminal: Recorder) -> None:
    live = Source(terminal, b"", live=True)
    live.feed(b"\x1b]0;" + b"x" * 5000)
    assert len(terminal.taken()) == 5004


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("live", "shown"),
    [(False, "T[1] one\nT[1] \nT[1] last\n"), (True, "T[1] one\nT[1]\nT[1] last\n")],
)
def test_each_line_may_begin_with_the_time(
    terminal: Recorder, size: int, live: bool, shown: str
) -> None:
    in_pieces(Source(terminal, b"[1] ", live, timed=True), b"one\n\nlast", size)
    assert TIME.sub("T", terminal.taken().decode()) == shown


def test_the_time_stands_alone_without_a_prefix(sink: Recorder) -> None:
    in_pieces(Source(sink, b"", timed=True), b"one\ntwo\n", 100)
    assert TIME.sub("T", sink.taken().decode()) == "T one\nT two\n"


def test_prefix() -> None:
    assert prefix("3", 3, False) == b"[3] "
    assert prefix("3", 3, True) == b"\x1b[35m[3]\x1b[39m "
    assert prefix("9", 9, True) == prefix("9", 3, True)
