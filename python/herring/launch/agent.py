"""The agent of `herring run` on another host, which starts and ends processes there.

ssh starts the agent, which learns everything from its standard input (`herring.launch.frames`) and
decides nothing: it reports output and ends of processes, and passes signals on. Its input ends when
the job has ended, the launcher was killed or the connection broke. The agent then ends all
remaining processes within seconds.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import IO

from herring.errors import ConfigurationError, HerringError
from herring.launch.environment import machine_defaults, own_environment
from herring.launch.frames import Frame, Inbox, Outbox, kind
from herring.launch.options import SERVER_COMMAND, CommandError, resolve_command
from herring.launch.processes import LEFTOVER_SECONDS, Process, Processes, prepared, signals_to_loop
from herring.lobby.notice import Notice
from herring.rendezvous.endpoint import bind_any, reserve
from herring.rendezvous.identity import host_identity
from herring.rendezvous.joined import JoinNotices
from herring.rendezvous.network import is_reachable_address, own_address, with_port
from herring.rendezvous.settings import value_of

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_BEAT_SECONDS = 10.0
_LAST_READS = 4  # of a pipe whose process has ended; other writers may never stop
_KEPT_BYTES = 1 << 20  # of output that ssh does not take; beyond it, processes wait
_LAST_SECONDS = 1.0  # the time to hand over the last output


class Agent:
    """One host's part of a job."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._inbox = Inbox()
        self._job: dict[str, object] = {}
        self._command: list[str] = []
        self._environment: dict[str, str] = {}
        self._grace = LEFTOVER_SECONDS
        self._running: dict[int, Process] = {}
        self._servers: set[int] = set()  # the numbers of dedicated servers
        self._notice: Notice | None = None
        self._pipes: dict[IO[bytes], _Pipe] = {}
        self._waiting = False  # whether reading pipes is suspended
        self._listener: socket.socket | None = None
        self._store: socket.socket | None = None  # keeps its port free
        self._joined: JoinNotices | None = None
        self._ending = False
        self._servers_stay = False  # until the workers here have ended
        self._elastic = False
        self._kill_at: float | None = None
        self._beat_at = time.monotonic() + _BEAT_SECONDS

    def run(self) -> int:
        """Serves until the input ends, then ends all processes.

        Returns:
            The exit status for the shell: 0.
        """
        self._processes = Processes()
        wake, wake_write = socket.socketpair()
        for end in (wake, wake_write):
            end.setblocking(False)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        signals_to_loop((*_STOPPING, signal.SIGCHLD), ())
        self._selector.register(wake, selectors.EVENT_READ, wake)
        # Only frames may be written to the original standard output.
        self._outbox = Outbox(os.dup(1), self._selector)
        os.dup2(2, 1)
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ, None)
        try:
            self._outbox.greet()
            while not self._ending or self._left():
                self._turn()
            self._processes.end_leftovers(signal.SIGTERM, self._grace)
            self._drain()
        finally:
            self._processes.end_leftovers(signal.SIGKILL, LEFTOVER_SECONDS)
            self._processes.forget()
            self._processes.close()
            self._outbox.close()
            if self._joined is not None:
                self._joined.close()
        return 0

    def _left(self, workers_only: bool = False) -> bool:
        return any(
            not process.ended
            for number, process in self._running.items()
            if not (workers_only and number in self._servers)
        )

    # The loop.

    def _turn(self) -> None:
        now = time.monotonic()
        soonest = min(each for each in (self._beat_at, self._kill_at) if each is not None)
        for key, _ in self._selector.select(max(0.0, soonest - now)):
            if isinstance(key.data, Outbox):
                key.data.flush()
            elif isinstance(key.data, _Pipe):
                self._forward(key.data)
            elif isinstance(key.data, socket.socket):
                self._on_signals(key.data)
            elif isinstance(key.data, JoinNotices):
                self._report_joined()
            else:
                self._read()
        for process in self._processes.reap():
            for number, each in self._running.items():
                if each is process:
                    self._report_last(number)
                    if process.shortage:
                        self._outbox.send(kind.SHORTAGE, number, process.shortage)
                    self._outbox.send(kind.ENDED, number, process.code)
        if self._servers_stay and not self._left(workers_only=True):
            self._servers_stay = False
            self._signal(signal.SIGTERM, self._servers)
        self._regulate()
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat_at = now + _BEAT_SECONDS
            if not self._outbox.pending:
                self._outbox.send(kind.BEAT)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal(signal.SIGKILL, self._running)
        if not self._outbox.open:
            self._end_all()

    def _report_joined(self) -> None:
        for rank in self._joined.ranks() if self._joined is not None else []:
            self._outbox.send(kind.JOINED, rank)

    def _report_last(self, number: int) -> None:
        """Reports what a process did and printed, before its end is reported."""
        self._report_joined()
        for pipe in list(self._pipes.values()):
            if pipe.number == number:
                for _ in range(_LAST_READS):
                    if not self._forward(pipe):
                        break

    def _read(self) -> None:
        try:
            data = os.read(0, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(0)
            self._end_all()
            return
        try:
            for frame in self._inbox.feed(data):
                self._on_frame(frame)
        except HerringError as error:
            status = getattr(error, "status", 1)
            self._outbox.send(kind.FAILED, 0, {"message": str(error), "status": status})
            self._end_all()

    def _on_signals(self, wake: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            ends = {*_STOPPING} if self._notice is None else {*_STOPPING, self._notice.signal}
            if stopping := [number for number in wake.recv(4096) if number in ends]:
                # The machine shuts down, or a user ends this process.
                self._end_after(stopping[0])

    def _end_after(self, number: int) -> None:
        """Ends all processes after a signal, and gives them the time of the notice if it is one."""
        if self._ending:
            return
        heeded = self._notice is not None and self._notice.signal == number
        seconds = self._notice.seconds if self._notice is not None and heeded else 0.0
        # Servers with notice leave the job when the workers do. Others must outlast the workers
        # here, which may have a step to finish.
        self._servers_stay = not (heeded and self._elastic)
        told = self._running.keys() - (self._servers if self._servers_stay else set())
        self._end(told, number if heeded else signal.SIGTERM, seconds)

    def _end_all(self) -> None:
        self._end(self._running, signal.SIGTERM)

    def _end(self, told: Iterable[int], number: int, seconds: float = 0.0) -> None:
        """Asks processes to end, and kills all after the grace period or more seconds."""
        if self._ending:
            return
        self._ending = True
        self._signal(number, told)
        self._signal(signal.SIGCONT, self._running)
        self._kill_at = time.monotonic() + max(self._grace, seconds)

    def _signal(self, number: int, told: Iterable[int]) -> None:
        for each in told:
            self._processes.signal(self._running[each], number)

    # Requests of the launcher.

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind == kind.JOB:
            self._prepare(frame)
        elif frame.kind == kind.LISTEN:
            self._listen(frame)
        elif frame.kind == kind.START:
            self._start(frame)
        elif frame.kind == kind.SIGNAL:
            process = self._running.get(frame.number)
            if process is not None:
                self._processes.signal(process, frame.integer())

    def _prepare(self, frame: Frame) -> None:
        job = frame.content()
        folder = str(job["folder"])
        try:
            os.chdir(folder)
        except OSError as error:
            raise ConfigurationError(
                f"the working directory {folder} cannot be entered ({error.strerror}): it must "
                "exist on every host"
            ) from None
        environment = own_environment(os.environ, several=True)
        environment.update({**job["environment"], "PWD": folder})
        machine_defaults(environment, int(job["workers"]), bool(job["horovod"]))
        self._environment = environment
        self._grace = min(float(job["grace"]), LEFTOVER_SECONDS)
        with contextlib.suppress(ConfigurationError):  # a job that is not elastic ignores it
            self._notice = Notice.parse(environment.get("HERRING_NOTICE", ""))
        if self._notice is not None:
            signals_to_loop((self._notice.signal,), ())
        os.environ["PATH"] = environment.get("PATH", os.defpath)
        if "VIRTUAL_ENV" in environment:
            os.environ["VIRTUAL_ENV"] = environment["VIRTUAL_ENV"]
        self._command = resolve_command(job["command"])
        client, _ = _ends()
        self._outbox.send(kind.READY, 0, {"client": client, "host": host_identity(environment)})

    def _listen(self, frame: Frame) -> None:
        interface = str(frame.content()["interface"])
        # Other hosts reach this one at the address that the launcher uses, unless that is local.
        _, address = _ends()
        if interface or not is_reachable_address(address):
            address = own_address(interface=interface or value_of(os.environ, "HERRING_INTERFACE"))
        try:
            self._listener = bind_any(address, self._environment)
        except OSError as error:
            raise ConfigurationError(
                f"rank 0 cannot listen on {address} ({error.strerror}): name another interface or "
                "address (--interface)"
            ) from None
        rendezvous = with_port(address, self._listener.getsockname()[1])
        self._store = reserve(self._environment)
        store_port = self._store.getsockname()[1]
        place = {"rendezvous": rendezvous, "store_port": store_port}
        self._outbox.send(kind.LISTENING, 0, place)

    def _start(self, frame: Frame) -> None:
        task = frame.content()
        environment = {**self._environment, **task["environment"]}
        job = task["environment"].get("HERRING_JOB")
        if self._joined is None and job is not None:
            self._joined = JoinNotices(job)
            if self._joined.socket is not None:
                self._selector.register(self._joined.socket, selectors.EVENT_READ, self._joined)
        command, keep = prepared(
            self._command if task["worker"] else None,
            *(SERVER_COMMAND, environment, self._listener if task["listener"] else None),
        )
        pipe = subprocess.PIPE
        try:
            process = self._processes.start(
                task["name"], command, environment, keep, subprocess.DEVNULL, pipe, pipe
            )
        except CommandError as error:
            content = {"message": str(error), "status": error.status, "process": frame.number}
            self._outbox.send(kind.FAILED, 0, content)
            return
        if keep and self._listener is not None:
            self._listener.close()
            self._listener = None
        self._running[frame.number] = process
        self._elastic = "HERRING_ELASTIC" in environment
        if not task["worker"]:
            self._servers.add(frame.number)
        self._outbox.send(kind.STARTED, frame.number, process.pid)
        for stream, kind_ in (
            (process.popen.stdout, kind.OUTPUT),
            (process.popen.stderr, kind.ERRORS),
        ):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._pipes[stream] = _Pipe(stream, kind_, frame.number)
            if not self._waiting:
                self._selector.register(stream, selectors.EVENT_READ, self._pipes[stream])

    # Output.

    def _forward(self, pipe: _Pipe) -> bool:
        """Moves one piece of output; returns whether there was any."""
        try:
            data = os.read(pipe.stream.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if data:
            self._outbox.send(pipe.kind, pipe.number, data)
            return True
        if not self._waiting:
            self._selector.unregister(pipe.stream)
        del self._pipes[pipe.stream]
        pipe.stream.close()
        return False

    def _regulate(self) -> None:
        """Makes processes wait while ssh does not take their output."""
        wait = self._outbox.pending > _KEPT_BYTES
        if wait == self._waiting:
            return
        self._waiting = wait
        for stream, pipe in self._pipes.items():
            if wait:
                self._selector.unregister(stream)
            else:
                self._selector.register(stream, selectors.EVENT_READ, pipe)

    def _drain(self) -> None:
        """Hands over the last output."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._outbox.open and time.monotonic() < deadline:
            if self._outbox.pending:
                self._selector.select(0.01)
                self._outbox.flush()
                continue
            moved = [self._forward(pipe) for pipe in list(self._pipes.values())]
            if not any(moved):
                break


def _ends() -> tuple[str, str]:
    """Returns the addresses of the launcher and this host in the ssh connection; or empty ones."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return (words[0], words[2]) if len(words) == 4 else ("", "")


class _Pipe:
    """A pipe with the output of a process."""

    def __init__(self, stream: IO[bytes], kind_: int, number: int) -> None:
        self.stream = stream
        self.kind = kind_
        self.number = number


def main() -> int:
    """Runs the agent; only `herring run` starts it."""
    if sys.stdin.isatty():
        print("herring.launch.agent: started by 'herring run -H', not by hand", file=sys.stderr)
        return 2
    return Agent().run()


if __name__ == "__main__":
    sys.exit(main())
