"""The gate that hands out address and secret, with a stand-in for MUNGE; what scontrol says."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import fork, reap
from herring.errors import ConfigurationError, TimeoutError
from herring.rendezvous import munge, slurm
from herring.rendezvous.detect import detect
from herring.rendezvous.endpoint import bind, resolve
from herring.rendezvous.meet import meet
from herring.rendezvous.munge import MungeError
from herring.rendezvous.publication import Wait
from herring.rendezvous.secret_server import SecretServer, ask

CONTENT = {"address": "127.0.0.1:5", "secret": "ab" * 32, "size": "2", "step": "0"}


def encode_as(user: str, payload: bytes) -> bytes:
    return f"{user}:{payload.hex()}".encode()


def encode(payload: bytes) -> bytes:
    return encode_as("me", payload)


def decode(credential: bytes) -> bytes:
    user, _, payload = credential.partition(b":")
    if user != b"me":
        raise MungeError("it was made by another user")
    return bytes.fromhex(payload.decode())


@pytest.fixture
def gate() -> Iterator[tuple[SecretServer, int]]:
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    opened = SecretServer(listener, ("job#0", "job"), CONTENT, encode, decode)
    yield opened, port
    opened.close()


class Once(Wait):
    """A wait that has time enough for one attempt, and for no other."""

    def goes_on(self, what: str) -> bool:
        del what
        return False


def refused(port: int, key: str) -> None:
    """Asks once, and expects no answer."""
    ask("127.0.0.1", port, key, Once("rank 1 of 2", 60, 60), encode, decode)


def request(port: int, key: str, seconds: float = 30.0) -> dict[str, str]:
    return ask("127.0.0.1", port, key, Wait("rank 1 of 2", seconds, 60), encode, decode)


def raw(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        try:
            connection.sendall(data)
            return connection.recv(1 << 16)
        except (ConnectionResetError, BrokenPipeError):
            return b""


def question(**changes: str) -> bytes:
    return json.dumps({"herring": "ask", "job": "job", "nonce": "0", **changes}).encode()


def test_members_get_an_answer(gate: tuple[SecretServer, int]) -> None:
    for key in ("job#0", "job", "job#0"):
        answer = request(gate[1], key)
        assert {name: answer[name] for name in CONTENT} == CONTENT


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"HRRING\r\n\0\0\0\0\n",
        b"x" * 20000,
        encode_as("other", question()) + b"\n",
        encode(b"[]") + b"\n",
        encode(b'{"herring": "ask", "job": ["job"], "nonce": "0"}') + b"\n",
        encode(question(job="job#1")) + b"\n",
        encode(question(herring="answer")) + b"\n",
        encode(question(nonce="")) + b"\n",
        encode(b"\xff\xfe") + b"\n",
    ],
    ids=["empty", "hello", "long", "user", "list", "types", "start", "answer", "nonce", "bytes"],
)
def test_strangers_get_nothing(gate: tuple[SecretServer, int], line: bytes) -> None:
    assert raw(gate[1], line) == b""
    assert request(gate[1], "job")["secret"] == CONTENT["secret"]


@pytest.mark.parametrize("strangers", [300, 700])
def test_who_says_nothing_keeps_nobody_out(
    gate: tuple[SecretServer, int], strangers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anybody delayed by the time that a guest has to ask, however many come again."""
    monkeypatch.setattr("herring.rendezvous.secret_server._GUEST_SECONDS", 600.0)
    complete, over = threading.Event(), threading.Event()

    def linger() -> None:
        with selectors.DefaultSelector() as selector:
            while not over.is_set():
                while len(selector.get_map()) < strangers:
                    here = socket.create_connection(("127.0.0.1", gate[1]), 30)
                    selector.register(here, selectors.EVENT_READ)
                complete.set()
                for key, _ in selector.select(0.01):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
            for key in list(selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]

    crowd = threading.Thread(target=linger)
    crowd.start()
    try:
        assert complete.wait(600)
        for _ in range(3):
            assert request(gate[1], "job")["secret"] == CONTENT["secret"]
    finally:
        over.set()
        crowd.join()


def test_without_descriptors_the_gate_neither_spins_nor_ends(
    gate: tuple[SecretServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("herring.rendezvous.secret_server._GUEST_SECONDS", 600.0)
    door = gate[0]._door
    turns: list[float] = []
    make_room = door._make_room

    def counted(most: int) -> None:
        if most == 0:  # no descriptor was left
            turns.append(time.monotonic())
        make_room(most)

    door._make_room = counted  # type: ignore[method-assign]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers = [socket.socket() for _ in range(6)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (strangers[-1].fileno() + 8, hard))
    filling = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        os.close(filling.pop())  # the thread that accepts may not have reserved one yet
        for stranger in strangers:
            stranger.settimeout(600)
            stranger.connect(("127.0.0.1", gate[1]))
        for stranger in strangers[:2]:  # each makes room for the next one
            assert stranger.recv(1) == b""
        pauses = [later - earlier for earlier, later in itertools.pairwise(turns)]
        assert turns and min(pauses, default=1.0) > 0.04, "the gate's thread spins"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in (*filling, *(stranger.fileno() for stranger in strangers)):
            os.close(each)
        for stranger in strangers:
            stranger.detach()
    assert request(gate[1], "job")["secret"] == CONTENT["secret"]


def test_an_echo_is_no_answer() -> None:
    """A stranger at the address may send back what it is asked, which this user has made."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()

        def echo() -> None:
            while True:
                there, _ = listener.accept()
                with there:
                    if over.is_set():
                        return
                    there.sendall(there.recv(1 << 16))

        mirror = threading.Thread(target=echo)
        mirror.start()
        port = listener.getsockname()[1]
        try:
            with pytest.raises(TimeoutError, match="has no answer for this job"):
                refused(port, "job")
        finally:
            over.set()
            socket.create_connection(("127.0.0.1", port), 30).close()
            mirror.join()


def test_a_closed_gate(gate: tuple[SecretServer, int]) -> None:
    gate[0].close()
    gate[0].close()
    with pytest.raises(TimeoutError, match=r"rank 1 of 2 .* answer at 127\.0\.0\.1:\d+ \(Conn"):
        refused(gate[1], "job")


def test_another_job_is_not_answered(gate: tuple[SecretServer, int]) -> None:
    with pytest.raises(TimeoutError, match="has no answer for this job"):
        refused(gate[1], "other")


def test_a_false_rank_0_is_not_believed() -> None:
    def forge(payload: bytes) -> bytes:
        return encode_as("other", payload)

    def repeat(payload: bytes) -> bytes:  # an answer to somebody else's question
        return encode(json.dumps({**json.loads(payload), "nonce": "00"}).encode())

    for false, reason in ((forge, "not this user's"), (repeat, "no answer for this job")):
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        opened = SecretServer(listener, ("job",), CONTENT, false, decode)
        try:
            with pytest.raises(TimeoutError, match=reason):
                refused(port, "job")
        finally:
            opened.close()


def test_a_forked_child_does_not_keep_the_gate(gate: tuple[SecretServer, int]) -> None:
    here, there = socket.socketpair()

    def run() -> None:
        here.close()
        gate[0].close()
        there.send(b"x")
        there.recv(1)

    child = fork(run)
    try:
        there.close()
        assert here.recv(1) == b"x"
        assert request(gate[1], "job")["secret"] == CONTENT["secret"]
        gate[0].close()
        with pytest.raises(TimeoutError):
            refused(gate[1], "job")
    finally:
        here.close()
        assert reap(child) == 0


@pytest.fixture
def scontrol(tmp_path: Path) -> dict[str, str]:
    """An environment of a job whose `scontrol` knows node n1, and a socket of munged's."""
    program = tmp_path / "scontrol"
    program.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '"--oneliner show node n1") echo "NodeName=n1 NodeAddr=127.0.0.7 NodeHostName=n1" ;;\n'
        '"--oneliner show node n2") echo "NodeName=n2 NodeAddr=no-such.invalid Port=1" ;;\n'
        '"show config") echo "AuthAltTypes = (null)"; '
        'echo "AuthInfo                = cred_expire=60,socket=/some/where" ;;\n'
        '*) echo "Node not found" >&2; exit 1 ;;\n'
        "esac\n"
    )
    program.chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{tmp_path}:/usr/bin:/bin"}


def test_nodes_whose_names_do_not_resolve(scontrol: dict[str, str]) -> None:
    wait = Wait("this test", 30, 60)
    with pytest.MonkeyPatch.context() as patch:
        real = socket.getaddrinfo

        def look_up(host: str, *rest: object, **more: object) -> object:
            if not host[0].isdigit():
                raise socket.gaierror(-2, "Name or service not known")
            return real(host, *rest, **more)  # type: ignore[arg-type]

        patch.setattr(socket, "getaddrinfo", look_up)
        assert resolve("n1", "Slurm", scontrol, wait) == "127.0.0.7"
        with pytest.raises(ConfigurationError, match=r"nor can its NodeAddr 'no-such\.invalid'"):
            resolve("n2", "Slurm", scontrol, wait)
        with pytest.raises(ConfigurationError, match="'scontrol show node n3' gives no address"):
            resolve("n3", "Slurm", scontrol, wait)
        with pytest.raises(ConfigurationError, match="Slurm names the host 'n1'"):
            resolve("n1", "Slurm", {**scontrol, "PATH": "/nonexistent"}, wait)
        cloud = {**scontrol, "SLURM_NODE_ALIASES": "n3:127.0.0.3:h3,n4:[::1]:h4"}
        assert resolve("n3", "Slurm", cloud, wait) == "127.0.0.3"
        assert slurm.node_address("n4", cloud) == "::1"


def test_the_socket_of_munged(scontrol: dict[str, str]) -> None:
    assert slurm.munge_socket(scontrol) == "/some/where"
    assert slurm.munge_socket({"PATH": "/nonexistent"}) == ""


def test_without_munge(scontrol: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("herring.rendezvous.meet._MUNGE_SOCKETS", ())
    environ = {
        **scontrol,
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
    }
    for rank in "01":
        worker = detect({**environ, "SLURM_PROCID": rank})
        assert worker.rendezvous.kind == "munge"
        with pytest.raises(ConfigurationError, match="HERRING_SECRET_FILE is not set, and MUNGE"):
            meet(worker, {**environ, "SLURM_PROCID": rank}, 5)


def test_libmunge_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: object) -> object:
        raise OSError("no such file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    munge._library.cache_clear()
    with pytest.raises(ConfigurationError, match=r"libmunge\.so\.2 is not installed"):
        munge.encode(b"x")
