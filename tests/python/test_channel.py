"""The doctor's connections and datagrams: strangers get nothing, and cannot stop the members."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from herring.doctor.links import answer_pings, discard, ping, race, reach, resolve_all
from herring.doctor.probes import Peer, Probes
from herring.errors import AuthenticationError
from herring.rendezvous.channel import DOCTOR, Channel, ChannelError, Listener, call
from herring.rendezvous.door import Door

SECRET = secrets.token_bytes(32)
HOST = "127.0.0.1"
HELLO_BYTES = 40


def echo(channel: Channel) -> None:
    with channel.socket:
        while True:
            channel.send(channel.receive(60.0))


@contextlib.contextmanager
def listening(handle: Any = echo, warn: Any = print) -> Iterator[int]:
    listener = Listener([socket.create_server((HOST, 0))], SECRET, DOCTOR, handle, warn)
    try:
        yield listener._door.sockets[0].getsockname()[1]
    finally:
        listener.close()


def test_members_exchange_messages() -> None:
    with listening() as port:
        channel = call(HOST, port, SECRET, DOCTOR, 60.0)
        for message in ({}, {"a": [1, None, "ü"]}, {"long": "x" * 100_000}):
            channel.send(message)
            assert channel.receive(60.0) == message
        channel.close()


def test_members_may_come_while_the_listener_is_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    came = threading.Event()
    made = Door.__init__

    def make(door: Door, *given: Any) -> None:
        made(door, *given)
        assert came.wait(60.0)

    def handle(channel: Channel) -> None:
        channel.close()
        came.set()

    monkeypatch.setattr(Door, "__init__", make)
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        member = threading.Thread(target=lambda: call(HOST, port, SECRET, DOCTOR, 60.0).close())
        member.start()
        Listener([server], SECRET, DOCTOR, handle).close()
        member.join()


def test_it_accepts_again_when_threads_can_be_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    left = 2
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        nonlocal left
        if left > 0:
            left -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    with listening(warn=warnings.append) as port:
        monkeypatch.setattr(threading.Thread, "start", start)
        for _ in range(2):
            with pytest.raises(AuthenticationError):
                call(HOST, port, SECRET, DOCTOR, 60.0)
        channel = call(HOST, port, SECRET, DOCTOR, 60.0)
        channel.send({"a": 1})
        assert channel.receive(60.0) == {"a": 1}
        channel.close()
    (warning,) = warnings
    assert "can't start new thread. Raise the limit of processes and threads" in warning


def test_a_stranger_gets_nothing_that_depends_on_the_secret() -> None:
    with listening() as port:
        with socket.create_connection((HOST, port), 60.0) as stranger:
            stranger.sendall(b"HRDOCTR\n" + bytes(32))
            answer = stranger.recv(100)
            assert len(answer) == HELLO_BYTES  # a nonce
            stranger.sendall(bytes(32))
            assert stranger.recv(100) == b""
        with socket.create_connection((HOST, port), 60.0) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: a-name-of-some-length\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""


@pytest.mark.parametrize("secret", [b"another" * 5, b""])
def test_another_secret_is_refused(secret: bytes) -> None:
    with listening() as port, pytest.raises(AuthenticationError, match="another secret"):
        call(HOST, port, secret, DOCTOR, 60.0)


def test_a_listener_that_sends_a_member_s_words_back_is_no_member() -> None:
    with socket.create_server((HOST, 0)) as server:

        def mirror() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(100):
                    connection.sendall(data)

        threading.Thread(target=mirror, daemon=True).start()
        with pytest.raises(AuthenticationError):
            call(HOST, server.getsockname()[1], SECRET, DOCTOR, 60.0)


def test_nobody_answers_within_the_time() -> None:
    with socket.create_server((HOST, 0)) as server, pytest.raises(OSError):
        call(HOST, server.getsockname()[1], SECRET, DOCTOR, 0.2)


def test_messages_that_are_none_end_the_connection() -> None:
    received: list[Exception] = []
    came = threading.Event()

    def receive(channel: Channel) -> None:
        try:
            channel.receive(60.0)
        except ChannelError as error:
            received.append(error)
        channel.close()
        came.set()

    with listening(receive) as port:
        for data in (b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\1{", b"\0\0"):
            came.clear()
            channel = call(HOST, port, SECRET, DOCTOR, 60.0)
            channel.socket.sendall(data)
            channel.socket.shutdown(socket.SHUT_WR)
            assert came.wait(60.0)
            channel.close()
    assert len(received) == 4


def test_members_get_in_beside_many_silent_strangers() -> None:
    with listening() as port, contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection((HOST, port), 60.0))
        channel = call(HOST, port, SECRET, DOCTOR, 10.0)
        channel.send({"still": "here"})
        assert channel.receive(10.0) == {"still": "here"}
        channel.close()


def test_round_trips_and_clocks() -> None:
    def serve(channel: Channel) -> None:
        assert channel.receive(60.0) == {"do": "ping"}
        with channel.socket:
            answer_pings(channel)

    with listening(serve) as port:
        channel = call(HOST, port, SECRET, DOCTOR, 60.0)
        channel.send({"do": "ping"})
        trip, ahead = ping(channel, 10, 1.0)
        channel.close()
    assert 0 < trip < 5 and abs(ahead) <= trip  # the same clock


def test_both_ends_of_a_race_have_rates() -> None:
    ends = socket.create_server((HOST, 0))
    one = socket.create_connection(ends.getsockname())
    other, _ = ends.accept()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(race(other, 1.0)))
    thread.start()
    found.append(race(one, 1.0))
    thread.join()
    for each in found:
        assert each.rate > 0 and 0 <= each.resent < 1 and 0 <= each.limited <= 1
    for each in (one, other):
        discard(each)
    ends.close()


def test_a_race_ends_with_its_other_end() -> None:
    one, other = socket.create_server((HOST, 0)), None
    with one, socket.create_connection(one.getsockname()) as caller:
        other, _ = one.accept()
        discard(other)
        assert race(caller, 600.0).rate == 0


def test_an_end_that_does_not_send_only_receives() -> None:
    with socket.create_server((HOST, 0)) as server:
        caller = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(race(other, 1.0, sends=False)))
        thread.start()
        assert race(caller, 1.0).rate == 0
        thread.join()
        assert found[0].rate > 0
        discard(caller)
        discard(other)


def test_ports_that_can_be_reached_and_those_that_cannot() -> None:
    with socket.create_server((HOST, 0)) as closed:
        dead = closed.getsockname()[1]
    with listening() as port:
        found = reach([{"index": 3, "address": HOST, "ports": [port, dead]}], SECRET, 60.0)
        assert found == {3: {port: "", dead: "Connection refused"}}
        [reason] = reach(
            [{"index": 0, "address": HOST, "ports": [port]}], bytes(32), 5.0
        )[0].values()  # fmt: skip
        assert "another secret" in reason
    assert reach([], SECRET, 60.0) == {}


def test_names_are_looked_up() -> None:
    found = resolve_all(["localhost", "nowhere.invalid"], 10.0)
    assert {"127.0.0.1", "::1"} & set(found["localhost"]["addresses"])
    assert found["nowhere.invalid"]["addresses"] == [] and found["nowhere.invalid"]["error"]


def test_probes_are_answered_and_found_too_large() -> None:
    one, other = Probes(HOST, SECRET), Probes(HOST, SECRET)
    stranger = Probes(HOST, bytes(32))
    with contextlib.closing(one), contextlib.closing(other), contextlib.closing(stranger):
        peers = [Peer(7, HOST, other.port, 9000), Peer(8, HOST, stranger.port, 1500)]
        assert one.losses(peers, 5) == {7: (5, 0), 8: (5, 5)}
        assert one.sizes(peers) == {7: 9000, 8: 0}


def test_probes_do_not_answer_strangers() -> None:
    probes = Probes(HOST, SECRET)
    with contextlib.closing(probes), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(0.2)
        for data in (b"", b"HRDP", b"HRDP" + bytes(100), secrets.token_bytes(1400)):
            stranger.sendto(data, (HOST, probes.port))
        with pytest.raises(TimeoutError):
            stranger.recvfrom(100)
