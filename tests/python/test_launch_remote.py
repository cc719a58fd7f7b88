"""The agent of `herring run` on another host, alone: on pipes, without a launcher."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from herring.launch import agent as module
from herring.launch.frames import GREETING, Frame, Inbox, kind
from launched import LIMIT, gone


class Agent:
    """An agent on pipes."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "herring.launch.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._inbox = Inbox(GREETING)
        self._frames: list[Frame] = []

    def send(self, kind_: int, number: int, content: object) -> None:
        payload = json.dumps(content).encode()
        header = kind_.to_bytes(1, "big") + number.to_bytes(4, "big")
        self.process.stdin.write(header + len(payload).to_bytes(4, "big") + payload)
        self.process.stdin.flush()

    def job(self, **more: object) -> None:
        content = {"folder": "/", "environment": {}, "command": ["sh", "-c", "exec sleep 1000"]}
        content.update({"workers": 1, "horovod": False, "grace": 1.0})
        self.send(kind.JOB, 0, {**content, **more})

    def frame(self) -> Frame:
        while not self._frames:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            assert data, self.process.stderr.read()
            self._frames += self._inbox.feed(data)
        return self._frames.pop(0)


@pytest.fixture
def agent() -> Iterator[Agent]:
    started = Agent()
    yield started
    started.process.kill()
    started.process.communicate()


DEAF = "trap '' TERM; while :; do sleep 0.05; done"


@pytest.mark.parametrize("script", ["exec sleep 1000", DEAF], ids=["sleep", "deaf"])
def test_the_end_of_its_input_ends_its_processes(agent: Agent, script: str) -> None:
    agent.job(command=["bash", "-c", script], grace=0.2)
    assert agent.frame().kind == kind.READY
    task = {"name": "rank 5", "worker": True, "listener": False, "environment": {}}
    agent.send(kind.START, 5, task)
    frame = agent.frame()
    assert (frame.kind, frame.number) == (kind.STARTED, 5)
    agent.process.stdin.close()
    agent.process.stdin = None
    assert agent.process.wait(LIMIT) == 0
    assert gone([frame.integer()])


LAST_WORDS = """
import fcntl, os, sys
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)  # room for more than the agent reads at once
open(sys.argv[1]).read()
os.write(1, bytes(250_000))
"""


def test_what_a_process_has_printed_comes_before_its_end(agent: Agent, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    agent.job(command=[sys.executable, "-c", LAST_WORDS, str(fifo)])
    assert agent.frame().kind == kind.READY
    task = {"name": "rank 5", "worker": True, "listener": False, "environment": {}}
    agent.send(kind.START, 5, task)
    process = psutil.Process(agent.frame().integer())
    go = fifo.open("w")  # waits until the process reads
    agent.process.send_signal(signal.SIGSTOP)
    go.close()
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    agent.process.send_signal(signal.SIGCONT)
    printed = 0
    while (frame := agent.frame()).kind != kind.ENDED:
        printed += len(frame.payload) if frame.kind == kind.OUTPUT else 0
    assert (frame.number, frame.integer(), printed) == (5, 0, 250_000)


def test_output_is_forwarded_if_there_is_any() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    stream = os.fdopen(read, "rb", buffering=0)
    pipe = module._Pipe(stream, kind.OUTPUT, 3)
    sent: list[tuple[object, ...]] = []
    outbox = types.SimpleNamespace(send=lambda *frame: sent.append(frame))
    only = types.SimpleNamespace(_outbox=outbox, _waiting=True, _pipes={stream: pipe})
    assert not module.Agent._forward(only, pipe), "there is nothing to read"
    os.write(write, b"words")
    assert module.Agent._forward(only, pipe)
    os.close(write)
    assert not module.Agent._forward(only, pipe), "that was the end"
    assert sent == [(kind.OUTPUT, 3, b"words")] and not only._pipes and stream.closed


def test_rank_0_inherits_the_listening_socket(agent: Agent) -> None:
    program = (
        "import os, socket; from herring.rendezvous.meet import meet\n"
        "from herring.rendezvous.detect import detect\n"
        "meeting = meet(detect(os.environ))\n"
        "listener = socket.socket(fileno=meeting.take_descriptor())\n"
        "print(listener.accept()[0].recv(100).decode())\n"
    )
    agent.job(command=[sys.executable, "-c", program])
    assert agent.frame().kind == kind.READY
    agent.send(kind.LISTEN, 0, {"interface": "lo"})
    frame = agent.frame()
    assert frame.kind == kind.LISTENING
    place = frame.content()
    address = place["rendezvous"]
    assert 1 <= place["store_port"] <= 65535
    environment = {"HERRING_RENDEZVOUS": address, "HERRING_RANK": "0", "HERRING_SIZE": "2"}
    environment["HERRING_SECRET"] = "ab" * 32
    task = {"name": "rank 0", "worker": True, "listener": True, "environment": environment}
    agent.send(kind.START, 0, task)
    assert agent.frame().kind == kind.STARTED
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT) as peer:
        peer.sendall(b"hello")
        printed = b""
        while not printed.endswith(b"\n"):
            frame = agent.frame()
            assert frame.kind == kind.OUTPUT
            printed += frame.payload
    assert printed == b"hello\n"
    frame = agent.frame()
    assert (frame.kind, frame.integer()) == (kind.ENDED, 0)


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({"folder": "/nowhere"}, 1, "working directory /nowhere cannot be entered"),
        ({"command": ["no-such-program"]}, 127, "no-such-program: no such program"),
    ],
)
def test_what_is_not_there_is_named(
    agent: Agent, more: dict[str, object], status: int, words: str
) -> None:
    agent.job(**more)
    frame = agent.frame()
    assert frame.kind == kind.FAILED
    assert frame.content()["status"] == status
    assert words in frame.content()["message"]
    assert agent.process.wait(LIMIT) == 0


def test_nonsense_at_its_input_ends_it(agent: Agent) -> None:
    agent.process.stdin.write(b"\xff" * 100)
    agent.process.stdin.flush()
    assert agent.frame().kind == kind.FAILED
    assert agent.process.wait(LIMIT) == 0
