"""A view on a terminal that follows a job."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from herring.base.units import show_duration
from herring.observe import words
from herring.observe.schema import StatusError
from herring.observe.tables import STYLES, table_of_ranks, text_of

_PARTS = (
    ("compute", "compute"),
    ("node stage", "node_stage"),
    ("push", "push"),
    ("pull", "pull"),
    ("wait for ranks", "wait_for_ranks"),
    ("exposed", "exposed"),
)
_LEVELS = "▁▂▃▄▅▆▇█"
_PLAIN_LEVELS = "_.-=+*%#"
_BAR = 30
_BESIDE_BAR = len("wait for ranks " + " 100 %  100 ms")
_HISTORY = 60
_MOST_NOTES = 6
_NEXT_SECONDS = 10.0  # within which the next generation of an elastic job must begin
_RETRY = 0.25  # seconds between two looks for it


def view(
    status: Mapping[str, Any], history: Sequence[float], console: Console, trouble: str = ""
) -> RenderableType:
    """Returns the view that follows a job, as it is now.

    Args:
      history: Median step times in seconds, the latest one last.
      console: Where it will be shown. The table of ranks is cut to what fits.
      trouble: Why there is no newer status, or an empty text.
    """
    ascii_only = console.options.ascii_only
    found: list[RenderableType] = [text_of(("bold", words.headline(status)))]
    found.append(Text(words.steps(status)))
    found.append(text_of(words.binds(status)))
    if history:
        line = Text("step time      ", style="bold")
        line.append(_sparkline(history, ascii_only), style="cyan")
        found.append(line)
    found += _split(status["steps"], min(_BAR, max(console.width - _BESIDE_BAR, 1)), ascii_only)
    found += [text_of(line) for line in words.notes(status, with_ranks=False)[:_MOST_NOTES]]
    found.append(Text())
    used = sum(len(console.render_lines(each)) for each in found)
    used += 3  # the head of the table, a line for what is cut, and the last line
    ranks = words.ranks_in_order(status)
    fitting = max(console.height - used, 1)
    found.append(table_of_ranks(ranks[:fitting]).fitted(console.width, ascii_only))
    if len(ranks) > fitting:
        found.append(Text(f"and {len(ranks) - fitting} ranks more", style="dim"))
    last = Text("q ends this view; the job goes on", style="dim")
    if trouble:
        last = Text(trouble, style=STYLES["bad"])
    found.append(last)
    return Group(*found)


def follow(
    fetch: Callable[[], Mapping[str, Any]],
    every: float,
    console: Console,
    show: Callable[[Mapping[str, Any]], None],
    later: Callable[[], None] | None = None,
    where: str = "on this machine",
) -> None:
    """Shows the status of a job until the job or the user ends it.

    A terminal shows one view that changes; elsewhere `show` prints each status below the last one.

    Args:
      fetch: Returns a status, or raises StatusError.
      every: Seconds from one status to the next.
      later: Looks for the next generation of an elastic job, so that `fetch` asks that one.
      where: Where that generation must begin, for the message if none does.

    Raises:
      StatusError: Not even the first status can be had.
    """
    job = _Followed(fetch, later, where)
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            with _restoring():
                _follow_on_terminal(job, every, console)
        else:
            _follow_as_text(job, every, console, show)
    except KeyboardInterrupt:
        return
    if job.ended:
        text = f"{words.headline(job.status)}: has ended ({job.trouble})"
        console.print(Text(text), soft_wrap=True)


class _Followed:
    """A job that is followed through its generations.

    Attributes:
      trouble: Why there is no newer one, or an empty text.
      ended: Whether there will be none.
      begun: Whether the status is the first one of another generation.
    """

    def __init__(
        self, fetch: Callable[[], Mapping[str, Any]], later: Callable[[], None] | None, where: str
    ) -> None:
        self._fetch, self._later, self._where = fetch, later, where
        self._gone: float | None = None  # since when nobody answers
        self.trouble, self.ended, self.begun = "", False, False
        self.status = fetch()  # the latest status

    @property
    def waiting(self) -> bool:
        """Whether nobody answers, and another generation may begin."""
        return self._gone is not None

    def pause(self, every: float) -> float:
        """Returns the seconds until the job should be asked again."""
        return min(every, _RETRY) if self.waiting else every

    def read(self) -> None:
        """Reads the status anew, or learns why there is none."""
        if self._gone is not None and self._later is not None:
            self._later()
        before = self.status
        try:
            self.status = self._fetch()
        except StatusError as error:
            self.trouble = str(error)
            if not _is_gone(error):
                self._gone = None
            elif self._later is None:
                self.ended = True
            else:
                self._wait()
            return
        self.begun = self._later is not None and _identity(self.status) != _identity(before)
        self.trouble, self._gone = "", None

    def _wait(self) -> None:
        """Gives the next generation of the job some time to begin."""
        now = time.monotonic()
        self._gone = now if self._gone is None else self._gone
        self.ended = now - self._gone > _NEXT_SECONDS
        self.trouble += (
            f"; no later generation has begun {self._where} within {_NEXT_SECONDS:g} s"
            if self.ended
            else "; waiting for the next generation"
        )


def _follow_on_terminal(job: _Followed, every: float, console: Console) -> None:
    history: deque[float] = deque(maxlen=_HISTORY)
    with _keys() as key, Live(console=console, screen=True, auto_refresh=False) as live:
        while not job.ended:
            if not job.trouble and (median := job.status["steps"]["seconds"]["median"]) is not None:
                history.append(median)
            live.update(view(job.status, history, console, job.trouble), refresh=True)
            if key(job.pause(every)) in ("q", "Q"):
                return
            job.read()


def _follow_as_text(
    job: _Followed, every: float, console: Console, show: Callable[[Mapping[str, Any]], None]
) -> None:
    told = ""
    while not job.ended:
        if not job.trouble:
            generation = ": the next generation" if job.begun else ""
            console.print(Text(time.strftime("--- %Y-%m-%d %H:%M:%S") + generation))
            show(job.status)
        elif job.trouble != told or not job.waiting:
            console.print(Text(job.trouble), soft_wrap=True)
        told = job.trouble
        console.file.flush()
        time.sleep(job.pause(every))
        job.read()


def _identity(status: Mapping[str, Any]) -> str:
    """Returns what keeps a job, and each generation of an elastic job, apart from others."""
    return str(status["id"] or status["job"])


def _is_gone(error: StatusError) -> bool:
    """Returns whether an error means that the job has ended, and not that it is slow to answer."""
    return not isinstance(error.__context__, TimeoutError)


class _Signalled(BaseException):
    """A signal that ends the process once the terminal is as before."""


@contextlib.contextmanager
def _restoring() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP end the process only after the block has restored the terminal."""
    came: list[int] = []

    def unwind(number: int, _: object) -> None:
        if not came:
            came.append(number)
            raise _Signalled

    endings = (signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.getsignal(each) for each in endings}
    mine = [each for each in endings if before[each] == signal.SIG_DFL]  # nohup ignores SIGHUP
    try:
        for each in mine:
            signal.signal(each, unwind)
        yield
    finally:
        for each in mine:
            signal.signal(each, before[each])
        if came:
            os.kill(os.getpid(), came[0])


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits up to so many seconds for a key and returns it, or an empty text.

    Without a terminal to read from, the function waits and returns an empty text.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _pause
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def key(seconds: float) -> str:
        if select.select([descriptor], [], [], seconds)[0]:
            return os.read(descriptor, 1).decode(errors="replace") or "q"  # the terminal is gone
        return ""

    try:
        tty.setcbreak(descriptor)
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _sparkline(values: Sequence[float], ascii_only: bool) -> str:
    levels = _PLAIN_LEVELS if ascii_only else _LEVELS
    low, high = min(values), max(values)
    if high - low < 0.02 * high:  # noise should not look like a mountain
        return levels[len(levels) // 2] * len(values)
    scale = (len(levels) - 1) / (high - low)
    return "".join(levels[round((value - low) * scale)] for value in values)


def _split(steps: Mapping[str, Any], width: int, ascii_only: bool) -> list[Text]:
    """Returns a bar of some width for each part of a step, as a share of the median step."""
    whole = steps["seconds"]["median"]
    found = []
    for name, field in _PARTS:
        seconds = steps[field]
        if not whole or seconds is None:
            continue
        part = seconds / whole
        full = min(round(part * width), width)
        line = Text(f"{name:15}")
        line.append(("#" if ascii_only else "█") * full, style="magenta" if full else "")
        line.append(("." if ascii_only else "░") * (width - full), style="dim")
        line.append(f" {words.share(part):>5}  {show_duration(seconds)}")
        found.append(line)
    return found
