"""`herring run`: starts a whole job on this machine and others, and supervises it.

One thread runs one loop, which waits for output, for signals (through a wake-up descriptor), for
frames of agents on other hosts, and for the next deadline. The rendezvous' port is bound before
anything starts, and rank 0 inherits the listening socket, so nobody else can take the port.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence

from herring.errors import ConfigurationError, HerringError
from herring.launch.agents import Agents
from herring.launch.children import Child, Children
from herring.launch.ending import STOPPING, Ending
from herring.launch.environment import passed_environment
from herring.launch.frames import Frame, Outbox, kind
from herring.launch.hosts import Host
from herring.launch.options import CommandError, RunOptions, Task, resolve_command
from herring.launch.outcome import Outcome
from herring.launch.processes import LEFTOVER_SECONDS, Processes, signals_to_loop
from herring.launch.restarts import Restarts
from herring.launch.scaling import Scaling
from herring.launch.ssh import Connection, HostError, Listeners
from herring.launch.starting import Starting
from herring.launch.streams import Streams
from herring.launch.terminal import Keyboard
from herring.launch.training import Training
from herring.rendezvous.joined import JoinNotices

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def run(options: RunOptions) -> int:
    """Runs a job to its end.

    Returns:
        The exit status for the shell: 0 if all workers ended with 0, else that of the first worker
        that failed (128 + signal if a signal ended it), or 124 after `RunOptions.timeout`.

    Raises:
        ConfigurationError: An option is out of range, or the command cannot be found. Nothing was
            started.
        HostError: A host cannot be reached, or has no Herring. No worker was started.
        CommandError: The command cannot be started. No process of the job is left.
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
        """Prepares the job; starts nothing."""
        self._options = options
        self._processes = Processes()
        self._children = Children(self._processes)
        self._selector = selectors.DefaultSelector()
        self._streams = Streams(
            options, self._selector, self._wait_for_reader, self._on_output_error
        )
        self._say = self._streams.say
        self._to_say: deque[tuple[str, str]] = deque()  # what other threads have to say
        self._waits = False  # whether the launcher waits for the reader of its output
        listeners = Listeners(self._selector, self._on_frame, self._on_text)
        self._agents = Agents(options, self._processes, listeners)
        self._training = Training(options, self._children)
        self._ending = Ending(options, self._children, self._agents, self._say, self._on_ending)
        self._starting = Starting(
            *(options, command, passed, chosen, self._processes, self._selector),
            *(self._children, self._streams, self._agents, self._training),
        )
        self._restarts = Restarts(
            *(options, {**os.environ, **chosen}, self._children, self._ending, self._start_again),
            *(self._say, self._training.has_ended, self._training.took_part, self._remove),
        )
        self._scaling = Scaling(
            *(options, self._processes, self._selector, self._children, self._agents),
            *(self._restarts, self._ending, self._start_added, self._say),
        )
        self._outcome = Outcome(
            *(options, self._children, self._streams, self._restarts, self._ending), self._training
        )

    def run(self) -> int:
        """Runs the job to its end; see the function of this name."""
        self._wake, self._wake_write = socket.socketpair()
        for end in (self._wake, self._wake_write):
            end.setblocking(False)
        old_wakeup = signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        numbers = (*STOPPING, *_PASSED_ON, signal.SIGCHLD, signal.SIGWINCH, signal.SIGTSTP)
        # The loop reads the wake-up descriptor.
        old_handlers = signals_to_loop(numbers, STOPPING)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        try:
            self._start()
            while self._children.running() or self._restarts.pending:
                self._turn()
            self._sweep()
            self._outcome.conclude()
        except BrokenPipeError:
            # The reader of the output is gone, as in "herring run ... | head": end the job, too.
            self._ending.decide(128 + signal.SIGPIPE)
        finally:
            self._ending.begun = True
            self._sweep(gentle=False)
            self._processes.close()
            self._streams.give_keyboard_back()
            self._starting.close()
            self._training.close()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            self._wake.close()
            self._wake_write.close()
            self._selector.close()
        return self._ending.status or 0

    def _start(self) -> None:
        begun = self._starting.begin(self._turn_if_going_on, self._say_later)
        if begun and self._training.lobby is not None:
            self._scaling.begin(self._training.lobby)

    def _say_later(self, level: str, text: str) -> None:
        """Tells the user; unlike other functions this one may be called from any thread."""
        self._to_say.append((level, text))
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    def _start_again(self, task: Task) -> None:
        try:
            self._starting.start(task)
        except CommandError as error:
            child = Child(task)
            self._children.add(child)
            self._cannot_start(child, error)

    def _start_added(self, host: Host, rank: int, local_rank: int) -> None:
        """Starts a worker besides those with which the job has begun."""
        try:
            self._streams.open_copies([rank])
        except ConfigurationError as error:
            self._say("warning", str(error))
        number = self._restarts.take_number()
        self._start_again(self._starting.added(host, rank, local_rank, number))

    def _remove(self, child: Child) -> None:
        self._children.remove(child)
        self._streams.remove(child.task.number)
        if child.process is not None:
            self._processes.remove(child.process)

    def _cannot_start(self, child: Child, error: CommandError) -> None:
        """Takes a successor that cannot be started for one that has died."""
        self._say("error", str(error))
        child.end(error.status)
        self._outcome.on_end(child)

    # The loop.

    def _turn(self, until: float | None = None) -> None:
        deadlines = [until, self._ending.next_deadline(), self._agents.next_deadline()]
        deadlines += [self._streams.next_deadline(), self._restarts.next_deadline()]
        deadlines += [self._scaling.next_deadline()]
        pending = [deadline for deadline in deadlines if deadline is not None]
        wait = max(0.0, min(pending) - time.monotonic()) if pending else None
        for key, _ in self._selector.select(wait):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    for number in self._wake.recv(4096):
                        self._on_signal(number)
            elif isinstance(key.data, Outbox):
                key.data.flush()
            elif isinstance(key.data, Keyboard):
                self._streams.type_on()
            elif isinstance(key.data, JoinNotices):
                self._training.note()
            else:
                self._streams.read(key)
        while self._to_say:
            self._say(*self._to_say.popleft())
        if self._training.failed and not self._ending.begun:
            self._ending.decide(1)
            self._ending.begin()  # the workers hear of it and end
        self._streams.on_time(time.monotonic())
        self._reap()
        self._on_time(time.monotonic())

    def _on_time(self, now: float) -> None:
        self._ending.on_time(now)
        self._agents.on_time(now)
        self._restarts.on_time(now)
        self._scaling.on_time(now)

    def _turn_if_going_on(self, until: float) -> bool:
        ending = self._ending
        if not ending.begun:
            self._turn(until)
        if ending.begun and ending.signal:
            ending.decide(128 + ending.signal)
        return not ending.begun

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._streams.resize()
            self._children.signal(number, servers=False)
        elif number == signal.SIGTSTP:
            # Ctrl-Z reaches only the launcher; the job must stop and continue with it.
            self._children.signal(signal.SIGSTOP)
            with self._streams.without_keyboard():
                os.kill(os.getpid(), signal.SIGSTOP)
            self._children.signal(signal.SIGCONT)
        elif number in _PASSED_ON:
            self._children.signal(number, servers=False)
        elif number in STOPPING:
            self._ending.on_signal(number)

    def _wait_for_reader(self, fd: int) -> bool:
        """Waits until the output is read again, and serves signals and deadlines; see `Sink`."""
        if self._waits:
            return False  # drop what the launcher says meanwhile
        self._waits = True
        try:
            while not self._ending.killed:
                at = self._ending.next_deadline()
                wait = None if at is None else max(0.0, at - time.monotonic())
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
        """Stops the job when standard output cannot be written."""
        self._say("error", f"standard output: {error.strerror}; stopping the job")
        self._ending.decide(1)
        self._ending.stop()

    def _reap(self) -> None:
        for process in self._processes.reap():
            if self._scaling.is_call(process):
                continue
            for child in self._children:
                if child.process is process:
                    child.shortage = process.shortage
                    child.end(process.code)
                    self._outcome.on_end(child)
            connection = self._agents.of(process)
            if connection is not None:
                self._on_loss(connection)

    def _on_frame(self, connection: Connection, frame: Frame) -> None:
        """Handles a frame of an agent about a process on its host."""
        if frame.kind == kind.JOINED:
            self._children.note_joined([frame.number])
            return
        if frame.kind == kind.FAILED:
            content = frame.content()
            message = f"{connection.host.name}: {content['message']}"
            error = CommandError(message, int(content["status"]))
            failed = self._children.get(int(content.get("process", -1)))
            if failed is not None and self._restarts.may_fail_to_start(failed):
                self._cannot_start(failed, error)
            elif failed is None and connection.added:
                connection.refusal = HostError(message)  # the agent ends
            else:
                raise error
            return
        child = self._children.get(frame.number)
        if child is None or child.connection is not connection:
            return
        if frame.kind in (kind.OUTPUT, kind.ERRORS):
            self._streams.feed(frame.number, frame.kind, frame.payload)
        elif frame.kind == kind.STARTED:
            child.pid = frame.integer()
        elif frame.kind == kind.SHORTAGE:
            child.shortage = frame.payload.decode(errors="replace")
        elif frame.kind == kind.ENDED and not child.ended:
            child.end(frame.integer())
            self._outcome.on_end(child)

    def _on_text(self, connection: Connection, data: bytes) -> None:
        """Shows what ssh or the agent itself prints."""
        self._streams.feed_note(connection.host.name, data)

    def _on_loss(self, connection: Connection) -> None:
        """Handles the end of an ssh."""
        connection.lost = True
        connection.give_up_at = None
        # What ssh printed before its end must still be read.
        self._streams.drain_pipes(connection.process.popen.stdout, connection.process.popen.stderr)
        if connection.closing:
            return
        connection.close()
        error = connection.explain()
        if connection.ready is None and not connection.added:
            raise error
        self._restarts.lose_host(connection)
        self._scaling.lose_host(connection)
        if connection.ready is None or connection.refusal is not None:
            self._say("warning", f"{error}; the job goes on without this host")
            return
        there = [c for c in self._children.running() if c.connection is connection]
        others = [c for c in self._children.running(workers_only=True) if c not in there]
        left = bool(others) or self._restarts.pending
        if not there and not left:
            return  # the host has done its part: an agent with notice ends with its last process
        goes_on = self._options.elastic is not None and left and not self._ending.begun
        if goes_on:
            self._say("warning", f"{error}; the job goes on without this host")
        else:
            self._ending.decide(error.status)
        for child in there:
            child.end(error.status)
            child.replaced = goes_on
        if not self._ending.begun and not goes_on:
            self._say("error", f"{error}{self._ending.consequence()}")
            self._ending.after_failure()
        for child in there:
            self._outcome.on_end(child)

    # Ending.

    def _on_ending(self) -> None:
        if self._training.lobby is not None:
            self._training.lobby.end()

    def _sweep(self, gentle: bool = True) -> None:
        """Ends the remaining processes of the job and shows the rest of their output."""
        self._ending.forget_deadlines()
        if not gentle:
            self._children.signal(signal.SIGKILL)
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
        """Runs one turn of the loop; while the job is being ended, errors are not reported."""
        with contextlib.suppress(*((HerringError, BrokenPipeError) if self._ending.begun else ())):
            self._turn(until)
        return True


def _is_read(key: selectors.SelectorKey) -> bool:
    """Returns whether a key belongs to the output of a process or an ssh."""
    return key.data is not None and not isinstance(key.data, (Outbox, JoinNotices, Keyboard))
