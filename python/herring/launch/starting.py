"""Starts the processes of a job, on this machine and on others."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from herring.launch.agents import Agents, workers_on
from herring.launch.children import Child, Children
from herring.launch.environment import (
    Place,
    as_horovod,
    ignored_variables,
    job_secret,
    job_variables,
    machine_defaults,
    own_environment,
    store_variables,
    tasks,
    worker_task,
)
from herring.launch.frames import kind
from herring.launch.hosts import Host
from herring.launch.options import RunOptions, Task
from herring.launch.processes import Processes, prepared
from herring.launch.streams import Streams
from herring.launch.training import Training
from herring.rendezvous.endpoint import bind_any, reserve
from herring.rendezvous.identity import host_identity
from herring.rendezvous.network import with_port


@dataclass(eq=False)
class Starting:
    """Where the job meets, with which variables, and the start of each of its processes."""

    _options: RunOptions
    _command: Sequence[str]
    _passed: dict[str, str]  # variables that other hosts get
    _chosen: dict[str, str]  # those among them that this machine gets, too
    _processes: Processes
    _selector: selectors.BaseSelector
    _children: Children
    _streams: Streams
    _agents: Agents
    _training: Training
    _store: socket.socket | None = None  # keeps the port of torch's store free
    _base: dict[str, str] = field(default_factory=dict)  # of all processes on this machine
    _variables: tuple[dict[str, str], dict[str, str]] = ({}, {})  # of the job and its store

    def begin(
        self, goes_on: Callable[[float], bool], say_later: Callable[[str, str], None]
    ) -> bool:
        """Reaches the hosts and starts all processes.

        Args:
            goes_on: Runs the loop until a moment; returns False if the job is being ended.
            say_later: Tells the user; may be called from any thread.

        Returns:
            False if the job was ended before.
        """
        options = self._options
        if ignored := ignored_variables(os.environ):
            text = "herring run makes a meeting place, a secret and a name for each job, or takes "
            text += "the secret in HERRING_SECRET_FILE"
            if "HERRING_JOB" in ignored:
                text += "; --name says what status and metrics call it"
            self._streams.say("warning", f"{', '.join(ignored)} ignored: {text}")
        secret = job_secret(os.environ)
        if not self._agents.reach(self._passed, as_horovod(options), goes_on):
            return False
        base = own_environment(os.environ, several=options.several)
        base.update(self._chosen)
        self._agents.require_different_hosts(host_identity(base))
        with contextlib.ExitStack() as stack:
            listener = None
            own = self._agents.own_address
            if options.elastic is not None:
                rendezvous = self._training.open_lobby(own(), secret, base, say_later)
                store_port = self._reserve(base)
            elif options.layout.workers[0][0].local:
                listener = stack.enter_context(bind_any(own(), base))
                rendezvous = with_port(*listener.getsockname()[:2])
                store_port = self._reserve(base)
            else:
                rendezvous, store_port = self._agents.rendezvous(goes_on)
                if not rendezvous:
                    return False
            self._streams.open_copies(range(options.workers))  # before anything starts in vain
            machine_defaults(base, workers_on(options, None), as_horovod(options))
            store = store_variables(rendezvous, store_port, self._chosen)
            job = job_variables(options, rendezvous, secret)
            self._training.listen(job["HERRING_JOB"], self._selector)
            self._base, self._variables = base, (job, store)
            for task in tasks(options, job, store):
                self.start(task, listener)
        return True

    def close(self) -> None:
        """Gives the reserved port back."""
        if self._store is not None:
            self._store.close()

    def start(self, task: Task, listener: socket.socket | None = None) -> None:
        """Starts a process.

        Args:
            listener: What rank 0 listens with.

        Raises:
            CommandError: The system cannot start the process.
        """
        if task.host.local:
            self._start_here(task, listener)
        else:
            self._start_far(task)

    def added(self, host: Host, rank: int, local_rank: int, number: int) -> Task:
        """Returns a worker besides those with which the job has begun."""
        workers = len(self._children.running(workers_only=True)) + 1
        place = Place(host, rank, workers, local_rank, host.slots, 0, 1)
        return worker_task(self._options, *self._variables, place, number)

    def _reserve(self, base: dict[str, str]) -> int:
        self._store = reserve(base)
        return int(self._store.getsockname()[1])

    def _start_far(self, task: Task) -> None:
        connection = self._agents.to(task.host)
        self._streams.add(task)
        self._children.add(Child(task, connection=connection))
        wanted = {
            "name": task.name,
            "worker": task.rank is not None,
            "listener": task.rank == 0,
            "environment": task.environment,
        }
        connection.out.send(kind.START, task.number, wanted)

    def _start_here(self, task: Task, listener: socket.socket | None) -> None:
        environment = {**self._base, **task.environment}
        command, keep = prepared(
            None if task.rank is None else self._command,
            *(self._options.server_command, environment),
            listener if task.number == 0 else None,
        )
        out = err = subprocess.PIPE
        stdin: int | None = subprocess.DEVNULL
        terminal = -1
        if task.number == (self._options.stdin or 0):  # unless it was started again
            reads = self._options.stdin is not None
            stdin, out, err, terminal = self._streams.open_terminal(reads)
        try:
            process = self._processes.start(task.name, command, environment, keep, stdin, out, err)
        finally:
            if terminal >= 0:
                os.close(terminal)
        self._children.add(Child(task, process, pid=process.pid))
        self._streams.connect(task, process.popen)
        if terminal >= 0:
            self._streams.connect_terminal(task)
