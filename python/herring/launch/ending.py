"""How a job is ended: by a signal, a failure or its time limit, and how long it may take."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from herring.launch.agents import Agents
from herring.launch.children import Children
from herring.launch.job import RunOptions

__all__ = ["EXIT_TIMEOUT", "STOPPING", "Ending"]

EXIT_TIMEOUT = 124  # as timeout(1)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SERVER_SECONDS = 2.0  # what servers get to end by themselves once all workers have ended
_SAME_STOP_SECONDS = 1.0  # two different signals in it are one stop: a session that ends sends both
_LAST_SECONDS = 10.0  # of a process that was killed, to end: one that waits for a device does not


class Ending:
    """Asks what is left of a job to end, and kills it in the end.

    Attributes:
        begun: Whether that has begun.
        killed: Whether everything was killed.
        signal: The first stopping signal that came, or 0.
        status: The exit status of the command as far as it is known, else None.
    """

    def __init__(
        self,
        options: RunOptions,
        children: Children,
        agents: Agents,
        say: Callable[[str, str], None],
    ) -> None:
        """Begins nothing yet.

        Args:
            options: Of the job.
            children: Its processes.
            agents: On its other hosts.
            say: Tells the user.
        """
        self._options = options
        self._children = children
        self._agents = agents
        self._say = say
        self.begun = self.killed = False
        self.signal = 0
        self.status: int | None = None
        self._signalled_at = 0.0
        self._dismissed = False  # servers were
        # What is to happen, and when.
        self._at: dict[Callable[[float], None], float] = {}
        if options.timeout is not None:
            self._at[self._time_out] = time.monotonic() + options.timeout

    def decide(self, status: int) -> None:
        """Sets the exit status, unless a failure before this one has."""
        self.status = self.status or status

    def next_deadline(self) -> float | None:
        """When `on_time` has to be called next, if at all."""
        return min(self._at.values(), default=None)

    def on_time(self, now: float) -> None:
        """Does what is due."""
        for act in [act for act, at in self._at.items() if now >= at]:
            if self._at.pop(act, None) is not None:
                act(now)

    def forget_deadlines(self) -> None:
        """Of all but what was killed."""
        self._at = {act: at for act, at in self._at.items() if act == self._give_up}

    def begin(self) -> None:
        """From now on the job has its grace."""
        self.begun = True
        kill_at = self._at.get(self._kill, time.monotonic() + self._options.grace)
        self._at.setdefault(self._stop_all, kill_at)
        self._at[self._kill] = kill_at

    def stop(self) -> None:
        """Asks all processes to end."""
        self._children.signal(signal.SIGTERM)
        self.begin()

    def after_failure(self) -> None:
        """Ends the others after one has failed, unless they are to go on."""
        if not self._options.keep_going:
            self.stop()

    def consequence(self) -> str:
        """What a failure means for the others: the end of a sentence."""
        left = len(self._children.running())
        if not left:
            return ""
        return (
            f"; {left} still running"
            if self._options.keep_going
            else f"; stopping the other {left}"
        )

    def dismiss_servers(self) -> None:
        """All workers have ended. Servers stay for the workers' next job; there is none now."""
        if self._dismissed or (self.begun and not self.signal):  # they were told to end
            return
        self._dismissed = True
        self._children.signal(signal.SIGTERM, workers=False)
        self._at[self._stop_all] = time.monotonic() + _SERVER_SECONDS

    def on_signal(self, number: int) -> None:
        """Passes a stopping signal on; kills if it is the second one."""
        now = time.monotonic()
        if self.signal:
            if number == self.signal or now - self._signalled_at > _SAME_STOP_SECONDS:
                self.kill_all()
                self._say("warning", "second signal, killing all processes")
            return
        self.signal, self._signalled_at = number, now
        # Not to the servers: workers may want to finish a step. First of all: nobody may read what
        # is said.
        self._children.signal(number, servers=False)
        self.begin()
        name = signal.Signals(number).name
        again = "; Ctrl-C again kills at once" if number == signal.SIGINT else ""
        left = f"what is left in {self._options.grace:g} s is killed{again}"
        self._say("info", f"passing {name} on; {left}")

    def kill_all(self) -> None:
        """Kills all processes, everywhere."""
        if not self.killed:
            self.killed = True
            self._at[self._give_up] = time.monotonic() + _LAST_SECONDS
        self._children.signal(signal.SIGKILL)

    # What happens at a deadline.

    def _time_out(self, _: float) -> None:
        if self.begun:
            return
        running = ", ".join(c.task.name for c in self._children.running()) or "ssh to other hosts"
        limit = f"{self._options.timeout:g} s (--timeout)"
        self._say("error", f"still running after {limit}: {running}; stopping the job")
        self.status = EXIT_TIMEOUT
        self.stop()

    def _stop_all(self, _: float) -> None:
        self.stop()

    def _kill(self, now: float) -> None:
        self.kill_all()
        self._agents.doubt(now)

    def _give_up(self, _: float) -> None:
        for child in self._children.running():
            if child.process is not None:
                child.end(-signal.SIGKILL)
                text = "does not end although it was killed; leaving it behind"
                self._say("error", f"{child.described} {text}")
