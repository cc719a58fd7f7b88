"""`herring run`: starts a whole job on this machine and others, and looks after it.

One thread, one loop: it waits for output, for signals (through a wake-up descriptor), for what
agents on other hosts say and for the next deadline. The rendezvous' port is bound before anything
starts, and rank 0 inherits the listening socket: there is no moment in which somebody else could
take the port.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from herring.errors import HerringError
from herring.launch.agents import Agents, workers_on
from herring.launch.causes import find_cause, hint
from herring.launch.children import Child
from herring.launch.frames import Frame, Outbox, kind
from herring.launch.job import (
    CommandError,
    RunOptions,
    Task,
    as_horovod,
    job_variables,
    machine_defaults,
    own_environment,
    passed_environment,
    resolve_command,
    store_variables,
    tasks,
)
from herring.launch.processes import (
    LEFTOVER_SECONDS,
    Process,
    Processes,
    how_ended,
    signals_to_loop,
)
from herring.launch.ssh import Connection
from herring.launch.streams import Streams
from herring.rendezvous.endpoint import bind_any, reserve
from herring.rendezvous.joined import Joined

__all__ = ["Launcher", "run"]

EXIT_NOT_JOINED = 3
EXIT_TIMEOUT = 124  # as timeout(1)
_SERVER_SECONDS = 2.0  # what servers get to end by themselves once all workers have ended
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SAME_STOP_SECONDS = 1.0  # two different signals in it are one stop: a session that ends sends both
_LAST_SECONDS = 10.0  # of a process that was killed, to end: one that waits for a device does not
_NO_INIT = "ended without having called herring.init()"
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def run(options: RunOptions) -> int:
    """Runs a job to its end.

    Returns:
        The exit status for the shell: 0 if all workers ended with 0, else that of the first one
        that failed (128 + signal if a signal ended it), or 124 after `RunOptions.timeout`.

    Raises:
        ConfigurationError: An option is out of range, or the command cannot be found. Nothing has
            been started then.
        HostError: A host cannot be reached, or has no Herring. No worker has been started then.
        CommandError: The command cannot be started. Nothing of the job is left.
    """
    options.check()
    passed, chosen = passed_environment(os.environ, options.assignments)
    command = list(options.command)
    if any(host.local for host, _ in options.layout.workers):
        command = resolve_command(command)
    return Launcher(options, command, passed, chosen).run()


class Launcher:
    """One job, from the first process to the last."""

    def __init__(
        self,
        options: RunOptions,
        command: Sequence[str],
        passed: dict[str, str],
        chosen: dict[str, str],
    ) -> None:
        """Prepares it.

        Args:
            options: What was asked for.
            command: Program and arguments, as they are started on this machine.
            passed: Variables that other hosts get.
            chosen: Those of them that this machine gets as well.
        """
        self._options = options
        self._command = list(command)
        self._passed = passed
        self._chosen = chosen
        self._children: list[Child] = []
        self._by_number: dict[int, Child] = {}
        self._selector = selectors.DefaultSelector()
        self._streams = Streams(
            options, self._selector, self._wait_for_reader, self._on_output_error
        )
        self._say = self._streams.say
        self._joined: Joined | None = None
        self._waits = self._killed = False  # for a reader; everything was
        self._give_up_at: float | None = None
        self._held = contextlib.ExitStack()  # until the end
        self._status: int | None = None  # of the first failure
        self._first: tuple[Child, float] | None = None  # that failed, and when (of time.time)
        self._signal = 0  # the first stopping signal that was passed on
        self._signalled_at = 0.0
        self._stopping = False
        self._kill_at: float | None = None
        self._stop_servers_at: float | None = None
        self._timeout_at: float | None = None

    def run(self) -> int:
        """Starts everything, waits, cleans up; see `run`."""
        self._processes = Processes()
        self._agents = Agents(
            *(self._options, self._processes, self._selector, self._on_frame, self._on_text)
        )
        self._wake, wake_write = socket.socketpair()
        for end in (self._wake, wake_write):
            end.setblocking(False)
        old_wakeup = signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        numbers = (*_STOPPING, *_PASSED_ON, signal.SIGCHLD, signal.SIGWINCH, signal.SIGTSTP)
        # The loop reads the wake-up descriptor.
        old_handlers = signals_to_loop(numbers, _STOPPING)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        try:
            self._start()
            while not all(child.ended for child in self._children):
                self._turn()
            self._sweep()
            self._conclude()
        except BrokenPipeError:
            # Our reader has gone (as in "herring run ... | head"); so must the job.
            self._status = self._status or 128 + signal.SIGPIPE
        finally:
            self._stopping = True
            self._sweep(gentle=False)
            self._processes.close()
            self._held.close()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            self._wake.close()
            wake_write.close()
            self._selector.close()
        return self._status or 0

    # Starting.

    def _start(self) -> None:
        options = self._options
        if options.timeout is not None:
            self._timeout_at = time.monotonic() + options.timeout
        layout = options.layout
        if not self._agents.reach(self._passed, as_horovod(options), self._turn_if_going_on):
            return
        base = own_environment(os.environ, several=bool(layout.remote))
        base.update(self._chosen)
        with contextlib.ExitStack() as stack:
            listener = None
            if layout.workers[0][0].local:
                listener = stack.enter_context(bind_any(self._agents.own_address(), base))
                host, port = listener.getsockname()[:2]
                rendezvous = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                store_port = self._held.enter_context(reserve(base)).getsockname()[1]
            else:
                rendezvous, store_port = self._agents.rendezvous(self._turn_if_going_on)
                if not rendezvous:
                    return
            self._streams.open_copies()  # before anything runs that would be in vain
            machine_defaults(base, workers_on(options, None), as_horovod(options))
            store = store_variables(rendezvous, store_port, self._chosen)
            job = job_variables(options, rendezvous)
            self._listen_for_joined(job["HERRING_JOB"])
            for task in tasks(options, job, store):
                if not task.host.local:
                    self._start_far(task)
                elif task.rank is None:
                    self._spawn_server(task, base)
                else:
                    self._spawn_worker(task, base, listener)

    def _start_far(self, task: Task) -> None:
        connection = self._agents.to(task.host)
        self._streams.add(task)
        self._add(Child(task, connection=connection))
        wanted = {
            "name": task.name,
            "worker": task.rank is not None,
            "listener": task.rank == 0,
            "environment": task.environment,
        }
        connection.out.send(kind.START, task.number, wanted)

    def _add(self, child: Child) -> None:
        self._children.append(child)
        self._by_number[child.task.number] = child

    def _spawn_server(self, task: Task, base: dict[str, str]) -> None:
        environment = {**base, **task.environment}
        command = [*self._options.server_command, "--rendezvous", environment["HERRING_RENDEZVOUS"]]
        out, err = subprocess.PIPE, subprocess.PIPE
        process = self._spawn(task, command, environment, (), subprocess.DEVNULL, out, err)
        self._streams.connect(task, process.popen)

    def _spawn_worker(
        self, task: Task, base: dict[str, str], listener: socket.socket | None
    ) -> None:
        environment = {**base, **task.environment}
        out = err = subprocess.PIPE
        stdin: int | None = subprocess.DEVNULL
        keep: tuple[int, ...] = ()
        terminal = -1
        if task.rank == 0 and listener is not None:
            environment["HERRING_RENDEZVOUS_FD"] = str(listener.fileno())
            keep = (listener.fileno(),)
            if not os.isatty(0):
                # A file or pipe is rank 0's to read. A terminal is not: a process group in the
                # background that reads from it is stopped.
                stdin = None
            out, err, terminal = self._streams.open_terminal()
        try:
            process = self._spawn(task, self._command, environment, keep, stdin, out, err)
        finally:
            if terminal >= 0:
                os.close(terminal)
        self._streams.connect(task, process.popen)
        if terminal >= 0:
            self._streams.connect_terminal(task)

    def _spawn(
        self,
        task: Task,
        command: Sequence[str],
        environment: dict[str, str],
        keep: tuple[int, ...],
        stdin: int | None,
        out: int,
        err: int,
    ) -> Process:
        process = self._processes.start(task.name, command, environment, keep, stdin, out, err)
        self._add(Child(task, process, pid=process.pid))
        return process

    # The loop.

    def _turn(self, until: float | None = None) -> None:
        deadlines = [until, self._kill_at, self._stop_servers_at, self._timeout_at]
        deadlines += [self._give_up_at, self._agents.next_deadline()]
        deadlines.append(self._streams.next_deadline())
        pending = [deadline for deadline in deadlines if deadline is not None]
        wait = max(0.0, min(pending) - time.monotonic()) if pending else None
        for key, _ in self._selector.select(wait):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    for number in self._wake.recv(4096):
                        self._on_signal(number)
            elif isinstance(key.data, Outbox):
                key.data.flush()
            elif isinstance(key.data, Joined):
                self._note_joined(key.data.ranks())
            else:
                self._streams.read(key)
        self._streams.on_time(time.monotonic())
        self._reap()
        self._on_time(time.monotonic())

    def _turn_if_going_on(self, until: float) -> bool:
        if not self._stopping:
            self._turn(until)
        if self._stopping and self._signal and self._status is None:
            self._status = 128 + self._signal
        return not self._stopping

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._streams.resize()
            self._signal_all(number, servers=False)
        elif number == signal.SIGTSTP:
            # Ctrl-Z reaches only us; the job must stop and go on with us.
            self._signal_all(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._signal_all(signal.SIGCONT)
        elif number in _PASSED_ON:
            self._signal_all(number, servers=False)
        elif number in _STOPPING:
            now = time.monotonic()
            if self._signal:
                if number == self._signal or now - self._signalled_at > _SAME_STOP_SECONDS:
                    self._kill_all()
                    self._say("second signal, killing all processes")
                return
            self._signal, self._signalled_at = number, now
            # Not to the servers: workers may want to finish a step. First of all: nobody may read
            # what is said.
            self._signal_all(number, servers=False)
            self._begin_to_stop()
            name = signal.Signals(number).name
            again = "; Ctrl-C again kills at once" if number == signal.SIGINT else ""
            self._say(
                f"passing {name} on; what is left in {self._options.grace:g} s is killed{again}"
            )

    def _kill_all(self) -> None:
        if not self._killed:
            self._killed, self._give_up_at = True, time.monotonic() + _LAST_SECONDS
        self._signal_all(signal.SIGKILL)

    def _give_up(self) -> None:
        """Of processes that do not end although they were killed."""
        for child in self._children:
            if child.process is not None and not child.ended:
                child.ended, child.code = True, -signal.SIGKILL
                name = f"{child.task.name} (process {child.pid})"
                self._say(f"{name} does not end although it was killed; leaving it behind")

    def _wait_for_reader(self, fd: int) -> bool:
        """Waits until our output is read again; see `Sink`. Signals and deadlines are served."""
        if self._waits:
            return False  # what is said meanwhile
        self._waits = True
        try:
            while not self._killed:
                pending = [at for at in (self._kill_at, self._timeout_at) if at is not None]
                wait = max(0.0, min(pending) - time.monotonic()) if pending else None
                woken, ready, _ = select.select([self._wake], [fd], [], wait)
                if ready:
                    return True
                if woken:
                    with contextlib.suppress(BlockingIOError):
                        for number in self._wake.recv(4096):
                            self._on_signal(number)
                self._on_time(time.monotonic())
            return False
        finally:
            self._waits = False

    def _on_output_error(self, error: OSError) -> None:
        """Our own output cannot be written: what a job does unseen is of no use."""
        self._say(f"standard output: {error.strerror}; stopping the job")
        self._status = self._status or 1
        self._signal_all(signal.SIGTERM)
        self._begin_to_stop()

    def _on_time(self, now: float) -> None:
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            if not self._stopping:
                running = ", ".join(c.task.name for c in self._children if not c.ended)
                running = running or "ssh to other hosts"
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
            self._kill_all()
            self._agents.doubt(now)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            self._give_up()
        self._agents.on_time(now)

    def _reap(self) -> None:
        for process in self._processes.reap():
            for child in self._children:
                if child.process is process:
                    child.ended, child.code = True, process.code
                    self._on_end(child)
            connection = self._agents.of(process)
            if connection is not None:
                self._on_loss(connection)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        """What the agent on another host says about a process there."""
        if frame.kind == kind.JOINED:
            self._note_joined([frame.number])
            return
        if frame.kind == kind.FAILED:
            content = frame.content()
            message = f"{connection.host.name}: {content['message']}"
            raise CommandError(message, int(content["status"]))
        child = self._by_number.get(frame.number)
        if child is None or child.connection is not connection:
            return
        if frame.kind in (kind.OUTPUT, kind.ERRORS):
            self._streams.feed(frame.number, frame.kind, frame.payload)
        elif frame.kind == kind.STARTED:
            child.pid = frame.integer()
        elif frame.kind == kind.ENDED and not child.ended:
            child.ended, child.code = True, frame.integer()
            self._on_end(child)

    def _on_text(self, connection: Connection, data: bytes) -> None:
        """What ssh, or the agent, has to say by itself."""
        self._streams.feed_note(connection.host.name, data)

    def _on_loss(self, connection: Connection) -> None:
        """An ssh has ended."""
        connection.lost = True
        connection.give_up_at = None
        # What it has said before is still to be read.
        self._streams.drain_pipes(connection.process.popen.stdout, connection.process.popen.stderr)
        if connection.closing:
            return
        connection.close()
        error = connection.explain()
        if connection.ready is None:
            raise error
        there = [c for c in self._children if c.connection is connection and not c.ended]
        if self._status is None:
            self._status = error.status
        for child in there:
            child.ended, child.code = True, error.status
        if not self._stopping:
            self._say(f"{error}{self._consequence()}")
            self._stop_for_failure()
        for child in there:
            self._on_end(child)

    def _on_end(self, child: Child) -> None:
        code = child.code
        self._streams.finish_process(child.task.number)
        if self._joined is not None:
            self._note_joined(self._joined.ranks())
        workers_ended = all(c.ended for c in self._children if not c.is_server)
        if code and not self._stopping:
            if child.is_server and workers_ended and code == -signal.SIGTERM:
                pass  # it was told to, before it had begun
            elif child.is_server and workers_ended:
                self._say(f"{child.task.name} {how_ended(code)} after all workers had ended")
            else:
                self._on_failure(child)
        elif self._options.require_init and self._left_out(child) and not self._stopping:
            self._status = self._status or EXIT_NOT_JOINED
            name = f"{child.task.name} (process {child.pid}{child.where})"
            self._say(f"{name} {_NO_INIT} (--require-init){self._consequence()}")
            self._stop_for_failure()
        elif code and not child.is_server and self._signal and self._status is None:
            self._status = 128 + self._signal
        if workers_ended and not self._stopping and self._stop_servers_at is None:
            # Servers stay for the workers' next job; there is none now.
            self._signal_servers(signal.SIGTERM)
            self._stop_servers_at = time.monotonic() + _SERVER_SECONDS

    def _on_failure(self, child: Child) -> None:
        if self._status is None:
            self._status = _shell_status(child.code)
        if self._first is None:
            self._first = child, time.time()
        name, how = child.task.name, how_ended(child.code)
        self._say(f"{name} (process {child.pid}{child.where}) {how}{self._consequence()}")
        self._stop_for_failure()

    def _consequence(self) -> str:
        left = sum(not c.ended for c in self._children)
        if self._options.keep_going:
            return f"; {left} still running" if left else ""
        return f"; stopping the other {left}" if left else ""

    def _stop_for_failure(self) -> None:
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
            if servers or not child.is_server:
                self._signal_one(child, number)

    def _signal_servers(self, number: int) -> None:
        for child in self._children:
            if child.is_server:
                self._signal_one(child, number)

    def _signal_one(self, child: Child, number: int) -> None:
        if child.process is not None:
            self._processes.signal(child.process, number)
        elif child.connection is not None:
            child.connection.out.send(kind.SIGNAL, child.task.number, number)

    # Ending.

    def _sweep(self, gentle: bool = True) -> None:
        """Ends what is left of the job and shows what is left of its output."""
        self._timeout_at = self._kill_at = self._stop_servers_at = None
        if not gentle:
            self._signal_all(signal.SIGKILL)
        self._agents.leave(self._turn_at_the_end)
        if gentle:
            self._streams.drain(_is_read)
            seconds = min(self._options.grace, LEFTOVER_SECONDS)
            self._processes.end_leftovers(signal.SIGTERM, seconds)
        self._processes.end_leftovers(signal.SIGKILL, LEFTOVER_SECONDS)
        if gentle:
            self._streams.drain(_is_read)
        self._processes.forget()

    def _turn_at_the_end(self, until: float) -> bool:
        """As `_turn`; of an end that is not gentle nothing is told."""
        with contextlib.suppress(*((HerringError, BrokenPipeError) if self._stopping else ())):
            self._turn(until)
        return True

    def _conclude(self) -> None:
        """Says at the end what may have been lost among the output of many."""
        if self._first is not None and self._status != EXIT_TIMEOUT and not self._signal:
            first, at = self._first
            cause, words = find_cause(first, at, self._children, self._streams.last_words)
            said = bool(self._streams.last_words(cause.task.number)[0])
            if len(self._children) > 1 and (said or cause is not first):
                name = f"{cause.task.name} (process {cause.pid}{cause.where})"
                self._say(f"the cause: {name} failed first, {words}")
            if cause.code != -signal.SIGTERM:
                self._status = _shell_status(cause.code)
            if text := hint(words):
                self._say(text)
        left_out = [child for child in self._children if self._left_out(child)]
        workers = self._options.workers
        if self._status or self._signal or workers < 2 or not left_out:
            return
        if len(left_out) == workers:
            what = f"none of the {workers} workers has called herring.init()"
        else:
            names = ", ".join(str(child.task.rank) for child in left_out)
            what = f"rank{'s' * (len(left_out) > 1)} {names} {_NO_INIT}"
        whose = "of it" if len(left_out) == 1 else "of them"
        self._say(f"{what}: Herring has averaged nothing {whose} (--require-init: status 3)")

    # Who has joined.

    def _listen_for_joined(self, job: str) -> None:
        self._joined = self._held.enter_context(contextlib.closing(Joined(job)))
        if self._joined.socket is not None:
            self._selector.register(self._joined.socket, selectors.EVENT_READ, self._joined)

    def _note_joined(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            child = self._by_number.get(rank)
            if child is not None and not child.is_server:
                child.joined = True

    def _left_out(self, child: Child) -> bool:
        """Whether it is a worker that has ended well and never joined."""
        return not child.is_server and child.ended and child.code == 0 and not child.joined


def _shell_status(code: int) -> int:
    return code if code > 0 else 128 - code


def _is_read(key: selectors.SelectorKey) -> bool:
    """Whether it is output of a process, or of an ssh."""
    return key.data is not None and not isinstance(key.data, (Outbox, Joined))
