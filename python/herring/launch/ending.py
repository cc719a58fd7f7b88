"""How a job is ended by a signal, a failure or its time limit, and how long that may take."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from herring.launch.agents import Agents
from herring.launch.children import Children
from herring.launch.options import RunOptions

EXIT_TIMEOUT = 124  # the status that timeout(1) gives
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_WORDS_SECONDS = 0.5  # for the others to say why they fail, and to write down what they did last
_SERVER_SECONDS = 2.0  # the time that servers have to end after the last worker
_SAME_STOP_SECONDS = 1.0  # two different signals within it count as one, as an ending session sends
_LAST_SECONDS = 10.0  # wait for killed processes: one that waits for a device does not end


@dataclass(eq=False)
class Ending:
    """Asks the remaining processes of a job to end, and kills those that do not."""

    _options: RunOptions
    _children: Children
    _agents: Agents
    _say: Callable[[str, str], None]  # tells the user; called with a level and a text
    _on_begin: Callable[[], None] = lambda: None  # called when the job begins to end
    begun: bool = False  # whether the job is being ended
    killed: bool = False  # whether all processes were killed
    signal: int = 0  # the first stopping signal that came, or 0
    status: int | None = None  # the exit status of the command, or None while it is not known
    _signalled_at: float = 0.0
    _stopped: bool = False  # whether all processes were told to end
    _dismissed: bool = False  # whether servers were told to end
    # What happens next, and when.
    _at: dict[Callable[[float], None], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._options.timeout is not None:
            self._at[self._time_out] = time.monotonic() + self._options.timeout

    def decide(self, status: int) -> None:
        """Sets the exit status, unless an earlier failure has set it."""
        self.status = self.status or status

    def next_deadline(self) -> float | None:
        """Returns when `on_time` must be called next, or None."""
        return min(self._at.values(), default=None)

    def on_time(self, now: float) -> None:
        """Does everything that is due."""
        for act in [act for act, at in self._at.items() if now >= at]:
            if self._at.pop(act, None) is not None:
                act(now)

    def forget_deadlines(self) -> None:
        """Forgets all deadlines except the last one, after which killed processes are given up."""
        self._at = {act: at for act, at in self._at.items() if act == self._give_up}

    def begin(self) -> None:
        """Starts the grace period, after which the job is killed."""
        if not self.begun:
            self._on_begin()
        self.begun = True
        kill_at = self._at.get(self._kill, time.monotonic() + self._options.grace)
        self._at.setdefault(self._stop_all, kill_at)
        self._at[self._kill] = kill_at

    def stop(self) -> None:
        """Asks all processes to end."""
        self._stopped = True
        self._children.signal(signal.SIGTERM)
        self.begin()

    def after_failure(self) -> None:
        """Stops the other processes after a failure, unless --keep-going was given.

        They have a moment to fail by themselves, because their errors say what they waited for.
        """
        if not self._options.keep_going:
            self._at[self._stop_all] = time.monotonic() + min(_WORDS_SECONDS, self._options.grace)
            self.begin()

    def consequence(self) -> str:
        """Returns the end of a sentence: what a failure means for the other processes."""
        left = len(self._children.running())
        if not left:
            return ""
        return (
            f"; {left} still running"
            if self._options.keep_going
            else f"; stopping the other {left}"
        )

    def dismiss_servers(self) -> None:
        """Ends the servers after all workers have ended: no further job can come."""
        if self._dismissed or (self._stopped and not self.signal):
            return
        self._dismissed = True
        self._children.signal(signal.SIGTERM, workers=False)
        self._at[self._stop_all] = time.monotonic() + _SERVER_SECONDS

    def dismiss_workers(self) -> None:
        """Ends workers that the others have left behind, after these have ended the training."""
        self._at.setdefault(self._stop_others, time.monotonic() + self._options.grace)

    def on_signal(self, number: int) -> None:
        """Passes a stopping signal on; kills all processes if it is the second one."""
        now = time.monotonic()
        if self.signal:
            if number == self.signal or now - self._signalled_at > _SAME_STOP_SECONDS:
                self.kill_all()
                self._say("warning", "second signal, killing all processes")
            return
        self.signal, self._signalled_at = number, now
        # Servers do not get the signal, because workers may want to finish a step. The signal comes
        # before the message, because writing the message may block.
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

    # Actions at deadlines.

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

    def _stop_others(self, _: float) -> None:
        if not self.begun:
            names = ", ".join(c.described for c in self._children.running(workers_only=True))
            self._say("warning", f"the training has ended without {names}; stopping the job")
            self.stop()

    def _kill(self, now: float) -> None:
        self.kill_all()
        self._agents.doubt(now)

    def _give_up(self, _: float) -> None:
        for child in self._children.running():
            child.end(-signal.SIGKILL)
            text = "does not end although it was killed; leaving it behind"
            self._say("error", f"{child.described} {text}")
