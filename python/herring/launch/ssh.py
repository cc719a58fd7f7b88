"""Other hosts of a job: an ssh to each, with an agent (`herring.launch.agent`) at its other end.

The job's secret and everything else that the agent must know go through ssh's standard input, never
into a command line.
"""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from herring.errors import HerringError
from herring.launch.commands import module_command
from herring.launch.frames import GREETING, Frame, Inbox, Outbox, kind
from herring.launch.hosts import Host
from herring.launch.options import EXIT_NO_HOST, CommandError, SshOptions
from herring.launch.processes import Process, Processes

_TAIL_BYTES = 4096
_LAST_SECONDS = 5.0  # the time in which ssh must end after the agent
# Variables that the agent's interpreter needs before the agent can read its input.
_TO_FIND_HERRING = ("PYTHONPATH", "LD_LIBRARY_PATH")


class HostError(CommandError):
    """A host cannot be reached, or has no Herring; the status is 255, like that of ssh."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_NO_HOST)


def ssh_command(host: Host, options: SshOptions, seconds: float) -> list[str]:
    """Returns the command that starts the agent (in `seconds` at most); ssh never prompts."""
    command = [*options.command, "-T"]
    settings = {
        "BatchMode": "yes",
        "ConnectTimeout": max(1, round(seconds)),
        # ssh notices within half a minute that the network is gone.
        "ServerAliveInterval": 10,
        "ServerAliveCountMax": 3,
        "ControlMaster": "no",  # a master left for later connections would end with the job
    }
    for name, value in settings.items():
        command += ["-o", f"{name}={value}"]
    if options.port is not None:
        command += ["-p", str(options.port)]
    if options.identity is not None:
        command += ["-i", str(options.identity)]
    agent = module_command("herring.launch.agent", options.python)
    shared = [f"{name}={os.environ[name]}" for name in _TO_FIND_HERRING if name in os.environ]
    if shared:
        agent = ["env", *shared, *agent]
    return [*command, host.name, f"exec {shlex.join(agent)}"]


@dataclass(frozen=True)
class Listeners:
    """What handles the data that connections receive."""

    # Watches the pipes; its keys have `feed` and `finish`, or `flush`.
    selector: selectors.BaseSelector
    on_frame: Callable[[Connection, Frame], None]  # gets the agents' frames
    # Gets what ssh and the agent write to standard error after the agent is ready.
    on_text: Callable[[Connection, bytes], None]


class Connection:
    """An ssh and the agent at its other end."""

    def __init__(
        self,
        host: Host,
        options: SshOptions,
        seconds: float,
        processes: Processes,
        listeners: Listeners,
    ) -> None:
        """Starts ssh, whose connection may take so many seconds."""
        self.host = host  # the host
        # What the agent reported about itself; None until then.
        self.ready: dict[str, Any] | None = None
        # Address of the rendezvous, once the agent of rank 0's host has reported it.
        self.address = ""
        # A port on that host that the agent keeps free for a torch.distributed store.
        self.store_port = 0
        self.closing = False  # whether the agent has been told to end
        self.lost = False  # whether ssh has ended
        self.give_up_at: float | None = None  # when ssh is killed unless it has ended, or None
        self.answer_by: float | None = None  # when ssh is killed unless the agent is ready, or None
        # Whether the host was named while the job was running, and may fail alone.
        self.added = False
        self.refusal: HostError | None = None  # why the host is not used, or None
        self._options = options
        self._listeners = listeners
        self._inbox = Inbox(GREETING)
        self._text = b""
        pipe = subprocess.PIPE
        command = ssh_command(host, options, seconds)
        # The ssh process.
        self.process: Process = processes.start(
            f"ssh to {host.name}", command, None, (), pipe, pipe, pipe
        )
        popen = self.process.popen
        assert popen.stdin is not None and popen.stdout is not None and popen.stderr is not None
        self.out = Outbox(os.dup(popen.stdin.fileno()), listeners.selector)
        popen.stdin.close()
        for stream, reader in ((popen.stdout, self), (popen.stderr, _Text(self))):
            os.set_blocking(stream.fileno(), False)
            listeners.selector.register(stream, selectors.EVENT_READ, reader)

    def feed(self, data: bytes) -> None:
        """Takes bytes that the agent sent; raises HostError if they are not an agent's."""
        try:
            frames = list(self._inbox.feed(data))
        except HerringError as error:
            self.refusal = HostError(f"{self.host.name}: {error}")
            if not self.added:
                raise self.refusal from None
            self.finish()
            return
        for frame in frames:
            if frame.kind == kind.READY:
                self.ready = frame.content()
            elif frame.kind == kind.LISTENING:
                place = frame.content()
                self.address, self.store_port = str(place["rendezvous"]), int(place["store_port"])
            elif frame.kind != kind.BEAT:
                self._listeners.on_frame(self, frame)

    def finish(self) -> None:
        """Handles the end of the agent's output: ssh must end soon."""
        if self.give_up_at is None:
            self.give_up_at = time.monotonic() + _LAST_SECONDS

    def close(self) -> None:
        """Tells the agent to end the processes that are left."""
        self.closing = True
        self.out.close()

    def hear(self, data: bytes) -> None:
        """Takes what ssh or the agent wrote to standard error."""
        self._text = (self._text + data)[-_TAIL_BYTES:]
        if self.ready is not None:
            self._listeners.on_text(self, data)

    def explain(self) -> HostError:
        """Returns an error that says why ssh ended too early, and what the user can do."""
        if self.refusal is not None:
            return self.refusal
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
                "refuses the login: allow a login without a password (ssh-copy-id), or give the "
                "private key (-i FILE)",
            ),
            (
                ("Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
                f"is not known to ssh: log in once by hand ('ssh {name}') and check its key",
            ),
            (
                ("Could not resolve hostname", "Name or service not known"),
                "has no address: give a name that ssh knows, or the address",
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
                "the same version there, or name the Python that has it (--remote-python)"
            )
        return HostError(
            f"{name}: ssh has ended with status {status} ({last}): does 'ssh -o BatchMode=yes "
            f"{name} {shlex.quote(python)} --version' work?"
        )

    def explain_silence(self, seconds: float) -> HostError:
        """Returns an error that says how long this host has not answered, and what to check."""
        return HostError(
            f"{self.host.name} has not answered in {seconds:g} s (--start-timeout): is it up, does "
            f"'ssh -o BatchMode=yes {self.host.name} true' work?"
        )


class _Text:
    """Reads the standard error of an ssh."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def feed(self, data: bytes) -> None:
        self._connection.hear(data)

    def finish(self) -> None:
        """Does nothing: the launcher waits for the ssh process itself."""
