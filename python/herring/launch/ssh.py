"""Other hosts of a job: an ssh to each, with an agent (`herring.launch.remote`) at its other end.

The job's secret and everything else the agent has to know go through ssh's standard input, never
into a command line.
"""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Callable
from typing import Any

from herring.errors import HerringError
from herring.launch.commands import module_command
from herring.launch.frames import GREETING, Frame, Inbox, Outbox, kind
from herring.launch.hosts import Host
from herring.launch.job import EXIT_NO_HOST, CommandError, SshOptions
from herring.launch.processes import Process, Processes

__all__ = ["Connection", "HostError", "ssh_command"]

_TAIL_BYTES = 4096
_LAST_SECONDS = 5.0  # for ssh to end once the agent has
# What the agent's interpreter needs before it can be told anything.
_TO_FIND_HERRING = ("PYTHONPATH", "LD_LIBRARY_PATH")


class HostError(CommandError):
    """A host cannot be reached, or has no Herring; its status is 255, as that of ssh."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_NO_HOST)


def ssh_command(host: Host, options: SshOptions, seconds: float) -> list[str]:
    """The command that starts the agent on a host; it never asks for anything.

    Args:
        host: Which.
        options: How it is reached.
        seconds: How long a connection may take.
    """
    command = [*options.command, "-T"]
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": max(1, round(seconds)),
        # A network that is gone is noticed within half a minute.
        "ServerAliveInterval": 10,
        "ServerAliveCountMax": 3,
        "ControlMaster": "no",  # what stays behind for later connections would end with the job
    }
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity is not None:
        command += ["-i", str(options.identity)]
    agent = module_command("herring.launch.remote", options.python)
    shared = [f"{name}={os.environ[name]}" for name in _TO_FIND_HERRING if name in os.environ]
    if shared:
        agent = ["env", *shared, *agent]
    return [*command, host.name, f"exec {shlex.join(agent)}"]


class Connection:
    """An ssh and the agent at its other end.

    Attributes:
        host: Which.
        process: The ssh.
        ready: What the agent has said of itself, once it has.
        address: Where the rendezvous is, once the agent of rank 0's host has said so.
        store_port: A port there that the agent keeps free, for a store of torch's.
        closing: Whether the agent has been told to end.
        lost: Whether ssh has ended.
        give_up_at: When ssh is killed if it has not ended by then, or None.
    """

    def __init__(
        self,
        host: Host,
        options: SshOptions,
        seconds: float,
        processes: Processes,
        selector: selectors.BaseSelector,
        on_frame: Callable[[Connection, Frame], None],
        on_text: Callable[[Connection, bytes], None],
    ) -> None:
        """Starts ssh.

        Args:
            host: Which.
            options: How it is reached.
            seconds: How long a connection may take.
            processes: Takes the ssh into care.
            selector: Reads and writes: keys have `feed` and `finish`, or `flush`.
            on_frame: Gets what the agent says.
            on_text: Gets what ssh and the agent write to their standard error once it is ready.
        """
        self.host = host
        self.ready: dict[str, Any] | None = None
        self.address = ""
        self.store_port = 0
        self.closing = False
        self.lost = False
        self.give_up_at: float | None = None
        self._options = options
        self._on_frame = on_frame
        self._on_text = on_text
        self._inbox = Inbox(GREETING)
        self._text = b""
        pipe = subprocess.PIPE
        command = ssh_command(host, options, seconds)
        self.process: Process = processes.start(
            f"ssh to {host.name}", command, None, (), pipe, pipe, pipe
        )
        popen = self.process.popen
        assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
        self.out = Outbox(os.dup(popen.stdin.fileno()), selector)
        popen.stdin.close()
        for stream, reader in ((popen.stdout, self), (popen.stderr, _Text(self))):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, reader)

    def feed(self, data: bytes) -> None:
        """Takes bytes of the agent.

        Raises:
            HostError: They are no agent's.
        """
        try:
            frames = list(self._inbox.feed(data))
        except HerringError as error:
            raise HostError(f"{self.host.name}: {error}") from None
        for frame in frames:
            if frame.kind == kind.READY:
                self.ready = frame.content()
            elif frame.kind == kind.LISTENING:
                place = frame.content()
                self.address, self.store_port = str(place["rendezvous"]), int(place["store_port"])
            elif frame.kind != kind.BEAT:
                self._on_frame(self, frame)

    def finish(self) -> None:
        """The agent has closed its end: ssh has to follow."""
        if self.give_up_at is None:
            self.give_up_at = time.monotonic() + _LAST_SECONDS

    def close(self) -> None:
        """Tells the agent to end what is left."""
        self.closing = True
        self.out.close()

    def hear(self, data: bytes) -> None:
        """Takes what ssh or the agent has written to its standard error."""
        self._text = (self._text + data)[-_TAIL_BYTES:]
        if self.ready is not None:
            self._on_text(self, data)

    def explain(self) -> HostError:
        """Why ssh has ended before its time, and what to do."""
        name, status = self.host.name, self.process.code
        text = self._text.decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        last = lines[-1] if lines else f"status {status}"
        python = self._options.python
        if self.ready is not None:
            return HostError(f"{name} is lost: its ssh has ended ({last})")
        for words, advice in (
            (
                ("Permission denied", "Too many authentication failures"),
                "refuses the login: let it in without a password (ssh-copy-id), or give the "
                "private key (-i FILE)",
            ),
            (
                ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
                f"is not known to ssh: log in once by hand ('ssh {name}') and check its key",
            ),
            (
                ("Could not resolve hostname", "Name or service not known"),
                "has no address: give the name that ssh takes, or the address",
            ),
            (
                ("Connection refused", "timed out", "No route to host", "unreachable"),
                "cannot be reached: is it up, and does sshd listen there (-p PORT)?",
            ),
        ):
            if any(word in text for word in words):
                return HostError(f"{name} {advice}: {last}")
        if "No module named" in text or status in (126, 127):
            return HostError(
                f"{name} has no Herring at {python}, or another version of it ({last}): install "
                "it there as here, or say which Python has it (--remote-python)"
            )
        return HostError(
            f"{name}: ssh has ended with status {status} ({last}): does 'ssh -o BatchMode=yes "
            f"{name} {shlex.quote(python)} --version' work?"
        )

    def explain_silence(self, seconds: float) -> HostError:
        """Why there is no waiting for this host any longer."""
        return HostError(
            f"{self.host.name} has not answered in {seconds:g} s (--start-timeout): is it up, does "
            f"'ssh -o BatchMode=yes {self.host.name} true' work?"
        )


class _Text:
    """The reader of an ssh's standard error."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def feed(self, data: bytes) -> None:
        self._connection.hear(data)

    def finish(self) -> None:
        """Nothing: ssh itself is waited for."""
