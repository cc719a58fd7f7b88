"""What the end of a process means for its job, and what the user is told of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from herring.launch.causes import find_cause, hint
from herring.launch.children import Child, Children
from herring.launch.ending import EXIT_TIMEOUT, Ending
from herring.launch.environment import as_horovod
from herring.launch.options import RunOptions
from herring.launch.restarts import Restarts
from herring.launch.streams import Streams
from herring.launch.training import Training
from herring.lobby.notice import EXIT_LEFT

EXIT_NOT_JOINED = 3


@dataclass(eq=False)
class Outcome:
    """Decides after each end whether the job goes on, and at last what it was that failed."""

    _options: RunOptions
    _children: Children
    _streams: Streams
    _restarts: Restarts
    _ending: Ending
    _training: Training
    _first: Child | None = None  # that failed, as far as the launcher noticed

    def __post_init__(self) -> None:
        self._say = self._streams.say
        # What the script calls to join the job, for messages.
        self._init = "hvd.init()" if as_horovod(self._options) else "herring.init()"

    def on_end(self, child: Child) -> None:
        """Draws the conclusions from the end of a process."""
        code, ending, training = child.code, self._ending, self._training
        self._streams.finish_process(child.task.number)
        if training.lobby is not None and code == 0 and not child.is_server:
            training.lobby.finish()  # its program may not use herring.elastic.run
        training.note()
        workers_ended = not self._children.running(workers_only=True)
        if code and not ending.begun:
            if self._restarts.on_end(child):
                pass
            elif child.is_server and workers_ended and code in (-signal.SIGTERM, EXIT_LEFT):
                pass  # the server was told to end: before it had begun, or when it heeds SIGTERM
            elif child.is_server and workers_ended:
                text = f"{child.task.name} {child.how_ended} after all workers had ended"
                self._say("warning", text)
            else:
                self._on_failure(child)
        elif self._options.require_init and child.left_out and not ending.begun:
            ending.decide(EXIT_NOT_JOINED)
            what = f"ended without having called {self._init}"
            text = f"{child.described} {what} (--require-init){ending.consequence()}"
            self._say("error", text)
            ending.after_failure()
        elif code and not child.is_server and ending.signal:
            ending.decide(128 + ending.signal)
        if training.is_over_for(self._children.running(workers_only=True)):
            ending.dismiss_workers()
        if workers_ended and self._has_left() and not self._restarts.pending:
            ending.decide(EXIT_LEFT)
        if workers_ended and not self._restarts.pending:
            ending.dismiss_servers()

    def conclude(self) -> None:
        """Repeats at the end what may have been lost among the output of many processes."""
        ending = self._ending
        if self._first is not None and ending.status != EXIT_TIMEOUT and not ending.signal:
            cause, words = find_cause(self._first, [*self._children], self._streams.last_words)
            last = self._streams.last_words(cause.task.number)
            more = cause.killed or last.error or last.line or cause is not self._first
            if len(self._children) > 1 and more:
                self._say("error", f"the cause: {cause.described} failed first, {words}")
            if cause.code != -signal.SIGTERM:
                ending.status = _shell_status(cause.code)
            if text := hint(words):
                self._say("info", text)
        left_out = [child for child in self._children if child.left_out]
        workers = self._options.workers
        if ending.status or ending.signal or workers < 2 or not left_out:
            return
        if len(left_out) == workers:
            what = f"none of the {workers} workers has called {self._init}"
        else:
            names = ", ".join(str(child.task.rank) for child in left_out)
            who = f"rank{'s' * (len(left_out) > 1)} {names}"
            what = f"{who} ended without having called {self._init}"
        whose = "their" if len(left_out) > 1 else "its"
        text = f"{what}, so Herring has averaged nothing of {whose} work"
        self._say("warning", f"{text}; --require-init makes that an error (status 3)")

    def _on_failure(self, child: Child) -> None:
        self._ending.decide(_shell_status(child.code))
        if self._first is None:
            self._first = child
        text = f"{child.described} {child.how_ended}"
        if self._training.has_ended():  # what the others do now needs no other worker
            self._say("error", f"{text} after the training")
        else:
            self._say("error", f"{text}{self._ending.consequence()}")
            self._ending.after_failure()

    def _has_left(self) -> bool:
        """Returns whether all workers have left the job before the end of the training."""
        codes = [child.code for child in self._children if not child.is_server]
        return self._options.elastic is not None and EXIT_LEFT in codes and 0 not in codes


def _shell_status(code: int) -> int:
    return code if code > 0 else 128 - code
