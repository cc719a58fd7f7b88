"""`herring run`: starts a whole job on this machine and looks after it.

One thread, one loop: it waits for output, for signals (through a wake-up descriptor) and for the
next deadline. The rendezvous' port is bound here, before anything starts, and rank 0 inherits the
listening socket: there is no moment in which somebody else could take the port.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from herring.errors import ConfigurationError
from herring.launch import guard
from herring.launch.job import (
    EXIT_NOT_EXECUTABLE,
    CommandError,
    RunOptions,
    job_environment,
    resolve_command,
    server_environment,
    worker_environments,
)
from herring.launch.output import Sink, Source, prefix

__all__ = ["Launcher", "run"]

EXIT_TIMEOUT = 124  # as timeout(1)
_SERVER_SECONDS = 2.0  # what servers get to end by themselves once all workers have ended
_DRAIN_SECONDS = 0.5
_LEFTOVER_SECONDS = 2.0
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


@dataclass
class _Child:
    """A started process."""

    name: str
    process: subprocess.Popen[bytes]
    is_server: bool
    group: int
    ended: bool = False


def run(options: RunOptions) -> int:
    """Runs a job to its end.

    Returns:
        The exit status for the shell: 0 if all workers ended with 0, else that of the first one
        that failed (128 + signal if a signal ended it), or 124 after `RunOptions.timeout`.

    Raises:
        ConfigurationError: An option is out of range, or the command cannot be found. Nothing has
            been started then.
    """
    options.check()
    command = resolve_command(options.command)
    return Launcher(options, command).run()


class Launcher:
    """One job, from the first process to the last."""

    def __init__(self, options: RunOptions, command: Sequence[str]) -> None:
        self._options = options
        self._command = list(command)
        self._children: list[_Child] = []
        self._by_pid: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        terminals = [os.isatty(1), os.isatty(2)]
        self._out, self._err = Sink(1, terminals[0]), Sink(2, terminals[1])
        if all(terminals) and os.fstat(1).st_rdev == os.fstat(2).st_rdev:
            self._err = self._out  # one screen has one unfinished line
        self._colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._terminal = -1  # our side of rank 0's pseudo-terminal
        self._status: int | None = None  # of the first failure
        self._signal = 0  # the first stopping signal that was passed on
        self._stopping = False
        self._kill_at: float | None = None
        self._stop_servers_at: float | None = None
        self._timeout_at: float | None = None

    def run(self) -> int:
        """Starts everything, waits, cleans up; see `run`."""
        guard.adopt_orphans()
        self._guard = guard.Guard()
        wake, wake_write = socket.socketpair()
        for end in (wake, wake_write):
            end.setblocking(False)
        old_wakeup = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        old_handlers = self._install_handlers()
        self._selector.register(wake, selectors.EVENT_READ, None)
        try:
            self._start()
            while not all(child.ended for child in self._children):
                self._turn(wake)
            self._sweep()
        except BrokenPipeError:
            # Our reader has gone (as in "herring run ... | head"); so must the job.
            self._status = self._status or 128 + signal.SIGPIPE
        finally:
            self._stopping = True
            self._sweep(gentle=False)
            self._guard.dismiss()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            wake.close()
            wake_write.close()
            self._selector.close()
        return self._status or 0

    # Starting.

    def _install_handlers(self) -> dict[int, object]:
        wanted = (*_STOPPING, *_PASSED_ON, signal.SIGCHLD, signal.SIGWINCH, signal.SIGTSTP)
        old = {}
        for number in wanted:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN and number in _STOPPING:
                continue  # nohup, or a job in the background of a script
            old[number] = before if before is not None else signal.SIG_DFL
            signal.signal(number, lambda *_: None)  # the loop reads the wake-up descriptor
        return old

    def _start(self) -> None:
        options = self._options
        if options.timeout is not None:
            self._timeout_at = time.monotonic() + options.timeout
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(4096)
            port = listener.getsockname()[1]
            base = job_environment(options, port)
            for index in range(options.servers):
                self._spawn_server(index, server_environment(base, index))
            for rank, environment in enumerate(worker_environments(options, base)):
                self._spawn_worker(rank, environment, listener.fileno())

    def _spawn_server(self, index: int, environment: dict[str, str]) -> None:
        command = [*self._options.server_command, "--rendezvous", environment["HERRING_RENDEZVOUS"]]
        name = f"server {index}"
        out, err = subprocess.PIPE, subprocess.PIPE
        child = self._spawn(name, command, environment, True, (), subprocess.DEVNULL, out, err)
        mark = self._mark(name, index + self._options.workers)
        self._connect(child.process.stdout, Source(self._out, mark))
        self._connect(child.process.stderr, Source(self._err, mark))

    def _spawn_worker(self, rank: int, environment: dict[str, str], listener: int) -> None:
        mark = self._mark(str(rank), rank)
        name = f"rank {rank}"
        copies = self._copies(rank)
        out = err = subprocess.PIPE
        stdin, keep = subprocess.DEVNULL, ()
        terminal = -1
        if rank == 0:
            environment["HERRING_RENDEZVOUS_FD"] = str(listener)
            keep = (listener,)
            if not os.isatty(0):
                # A file or pipe is rank 0's to read. A terminal is not: a process group in the
                # background that reads from it is stopped.
                stdin = None
            if self._out.terminal or self._err.terminal:
                terminal = self._open_terminal()
                out = terminal if self._out.terminal else subprocess.PIPE
                err = terminal if self._err.terminal else subprocess.PIPE
        try:
            child = self._spawn(name, self._command, environment, False, keep, stdin, out, err)
        finally:
            if terminal >= 0:
                os.close(terminal)
        if terminal >= 0:
            sink = self._out if self._out.terminal else self._err
            copy = copies[0] if self._out.terminal else copies[1]
            source = Source(sink, mark, live=True, copy=copy)
            self._selector.register(self._terminal, selectors.EVENT_READ, source)
        for pipe, sink, copy in (
            (child.process.stdout, self._out, copies[0]),
            (child.process.stderr, self._err, copies[1]),
        ):
            if pipe is not None:
                self._connect(pipe, Source(sink, mark, copy=copy))

    def _copies(self, rank: int) -> tuple[Path | None, Path | None]:
        """The files for what a rank prints, if they are asked for; their folder is made."""
        if self._options.output is None:
            return None, None
        digits = len(str(self._options.workers - 1))
        folder = self._options.output / f"rank.{rank:0{digits}}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--output-filename: {folder}: {error.strerror}") from None
        return folder / "stdout", folder / "stderr"

    def _spawn(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str],
        is_server: bool,
        keep: tuple[int, ...],
        stdin: int | None,
        out: int,
        err: int,
    ) -> _Child:
        launcher = os.getpid()
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=stdin,
                stdout=out,
                stderr=err,
                pass_fds=keep,
                # This process has one thread, so running Python after fork is safe.
                preexec_fn=lambda: guard.child_setup(launcher),
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CommandError(
                f"cannot start {name} ({command[0]}): {reason}", EXIT_NOT_EXECUTABLE
            ) from error
        self._guard.add(process.pid)
        child = _Child(name, process, is_server, process.pid)
        self._children.append(child)
        self._by_pid[process.pid] = child
        return child

    def _connect(self, pipe: object, source: Source) -> None:
        if pipe is not None:
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, source)

    def _mark(self, label: str, index: int) -> bytes:
        if not self._options.prefix:
            return b""
        return prefix(label, index, self._colour and self._out.terminal)

    def _open_terminal(self) -> int:
        """A pseudo-terminal as wide as ours less the prefix; returns rank 0's side."""
        self._terminal, inner = os.openpty()
        attributes = termios.tcgetattr(inner)
        attributes[1] &= ~termios.OPOST  # the real terminal turns "\n" into "\r\n"
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(inner, termios.TCSANOW, attributes)
        self._resize_terminal()
        os.set_blocking(self._terminal, False)
        return inner

    def _resize_terminal(self) -> None:
        if self._terminal < 0:
            return
        size = os.get_terminal_size(1 if self._out.terminal else 2)
        columns = max(20, size.columns - (4 if self._options.prefix else 0))
        packed = struct.pack("HHHH", size.lines, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, packed)

    # The loop.

    def _turn(self, wake: socket.socket) -> None:
        deadlines = (self._kill_at, self._stop_servers_at, self._timeout_at)
        pending = [deadline for deadline in deadlines if deadline is not None]
        wait = max(0.0, min(pending) - time.monotonic()) if pending else None
        for key, _ in self._selector.select(wait):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    for number in wake.recv(4096):
                        self._on_signal(number)
            else:
                self._read(key)
        self._reap()
        self._on_time(time.monotonic())

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Moves one piece of output; whether there was any."""
        try:
            data = os.read(key.fd, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # EIO: the pseudo-terminal has no other side any more
            data = b""
        if data:
            key.data.feed(data)
            return True
        self._selector.unregister(key.fileobj)
        key.data.finish()
        if key.fd == self._terminal:
            os.close(self._terminal)
            self._terminal = -1
        else:
            key.fileobj.close()
        return False

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._resize_terminal()
            self._signal_all(number, servers=False)
        elif number == signal.SIGTSTP:
            # Ctrl-Z reaches only us; the job must stop and go on with us.
            self._signal_all(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._signal_all(signal.SIGCONT)
        elif number in _PASSED_ON:
            self._signal_all(number, servers=False)
        elif number in _STOPPING:
            if self._signal:
                self._say("second signal, killing all processes")
                self._signal_all(signal.SIGKILL)
                return
            self._signal = number
            name = signal.Signals(number).name
            again = "; Ctrl-C again kills at once" if number == signal.SIGINT else ""
            self._say(
                f"passing {name} on; what is left in {self._options.grace:g} s is killed{again}"
            )
            # Not to the servers: workers may want to finish a step.
            self._signal_all(number, servers=False)
            self._begin_to_stop()

    def _on_time(self, now: float) -> None:
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            if not self._stopping:
                running = ", ".join(c.name for c in self._children if not c.ended)
                limit = f"{self._options.timeout:g} s (--timeout)"
                self._say(f"still running after {limit}: {running}; stopping the job")
                self._status = EXIT_TIMEOUT
                self._signal_all(signal.SIGTERM)
                self._begin_to_stop()
        if self._stop_servers_at is not None and now >= self._stop_servers_at:
            self._stop_servers_at = None
            self._signal_all(signal.SIGTERM)
            self._begin_to_stop()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._signal_all(signal.SIGKILL)

    def _reap(self) -> None:
        ended = []
        while True:
            # Look first: only Popen may collect its own child.
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if info is None:
                break
            child = self._by_pid.get(info.si_pid)
            if child is None:
                os.waitpid(info.si_pid, 0)  # an adopted orphan, or the guard
                continue
            child.process.wait()
            child.ended = True
            ended.append(child)
        # Deaths seen at once come in no order. A crash is more likely the cause than an exit.
        for child in sorted(ended, key=lambda c: c.process.returncode >= 0):
            self._on_end(child)

    def _on_end(self, child: _Child) -> None:
        code = child.process.returncode
        if not guard.kill_group(child.group, 0):
            # Nobody is left in the group: its number may go to somebody else.
            self._guard.remove(child.group)
            child.group = 0
        workers_ended = all(c.ended for c in self._children if not c.is_server)
        if code and not self._stopping:
            if child.is_server and workers_ended and code == -signal.SIGTERM:
                pass  # it was told to, before it had begun
            elif child.is_server and workers_ended:
                self._say(f"{child.name} {_how(code)} after all workers had ended")
            else:
                self._on_failure(child)
        elif code and not child.is_server and self._signal and self._status is None:
            self._status = 128 + self._signal
        if workers_ended and not self._stopping and self._stop_servers_at is None:
            # Servers stay for the workers' next job; there is none now.
            self._signal_servers(signal.SIGTERM)
            self._stop_servers_at = time.monotonic() + _SERVER_SECONDS

    def _on_failure(self, child: _Child) -> None:
        code = child.process.returncode
        if self._status is None:
            self._status = code if code > 0 else 128 - code
        left = sum(not c.ended for c in self._children)
        then = f"; stopping the other {left}" if left else ""
        if self._options.keep_going:
            then = f"; {left} still running" if left else ""
        self._say(f"{child.name} (process {child.process.pid}) {_how(code)}{then}")
        if not self._options.keep_going:
            self._signal_all(signal.SIGTERM)
            self._begin_to_stop()

    def _begin_to_stop(self) -> None:
        self._stopping = True
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._options.grace
        self._stop_servers_at = self._stop_servers_at or self._kill_at

    def _signal_all(self, number: int, servers: bool = True) -> None:
        for child in self._children:
            if child.group and (servers or not child.is_server):
                # Also where the first process has ended: it may have left others in its group.
                guard.kill_group(child.group, number)

    def _signal_servers(self, number: int) -> None:
        for child in self._children:
            if child.group and child.is_server:
                guard.kill_group(child.group, number)

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._err.write(f"herring run: {text}\n".encode(), None)

    # Ending.

    def _sweep(self, gentle: bool = True) -> None:
        """Ends what is left of the job and shows what is left of its output."""
        if gentle:
            self._drain()
            self._end_leftovers(signal.SIGTERM, min(self._options.grace, _LEFTOVER_SECONDS))
        self._end_leftovers(signal.SIGKILL, _LEFTOVER_SECONDS)
        if gentle:
            self._drain()
        for child in self._children:
            if child.group:
                self._guard.remove(child.group)
                child.group = 0

    def _end_leftovers(self, number: int, seconds: float) -> None:
        """Signals every process that is left, and waits for up to `seconds`.

        Those may be children, members of a child's group, or orphans that left their group.
        """
        deadline = time.monotonic() + seconds
        signalled: set[int] = set()
        while True:
            for child in self._children:
                if child.group and child.group not in signalled:
                    signalled.add(child.group)
                    guard.kill_group(child.group, number)
            left = guard.adopted({self._guard.pid})
            for pid in left:
                if pid not in signalled:
                    signalled.add(pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
            self._reap()
            groups = any(c.group and guard.kill_group(c.group, 0) for c in self._children)
            if not (left or groups) or time.monotonic() >= deadline:
                return
            time.sleep(0.005)

    def _drain(self) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            keys = [key for key, _ in self._selector.select(0) if key.data is not None]
            moved = [self._read(key) for key in keys]  # all of them, so that none starves
            if not any(moved):
                break
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data.finish()


def _how(code: int) -> str:
    """In words how a process with Popen's return code `code` has ended."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was killed by signal {-code}"
