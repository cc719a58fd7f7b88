"""A status on a terminal: tables of all ranks and servers, and a view that follows the job."""

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
from rich.table import Table
from rich.text import Text

from herring.observe import words
from herring.observe.schema import StatusError

__all__ = ["STYLES", "follow", "tables", "text_of", "view"]

STYLES = {
    "": "",
    "bold": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "stack": "dim",
    "dim": "dim",
}
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
_HISTORY = 60
_MOST_NOTES = 6
_NEXT_SECONDS = 10.0  # within which the next generation of an elastic job must begin
_RETRY = 0.25  # seconds between two looks for it


def text_of(line: words.Line) -> Text:
    """Returns a line with its colours."""
    return Text(line[1], style=STYLES[line[0]])


def tables(status: Mapping[str, Any], ascii_only: bool = False) -> list[Table]:
    """Returns the tables of all ranks, all servers and all groups."""
    found = [_ranks(sorted(status["ranks"], key=_number), counters=True)]
    if status["servers"]:
        found.append(_servers(status["servers"]))
    if status["groups"]:
        found.append(_groups(status["groups"]))
    return [_cropped(table, ascii_only) for table in found]


def view(
    status: Mapping[str, Any],
    history: Sequence[float],
    console: Console,
    trouble: str = "",
) -> RenderableType:
    """Returns the view that follows a job, as it is now.

    Args:
      status: What `schema.parse` returns.
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
    found += _split(status["steps"], ascii_only)
    found += [text_of(line) for line in words.notes(status, with_ranks=False)[:_MOST_NOTES]]
    found.append(Text())
    used = sum(len(console.render_lines(each)) for each in found)
    used += 3  # the head of the table, a line for what is cut, and the last line
    ranks = words.ranks_in_order(status)
    fitting = max(console.height - used, 1)
    found.append(_cropped(_ranks(ranks[:fitting], counters=False), ascii_only))
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
      console: Where it is shown.
      show: Prints a status as text.
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
      status: The latest status.
      trouble: Why there is no newer one, or an empty text.
      ended: Whether there will be none.
      begun: Whether the status is the first one of another generation.
    """

    def __init__(
        self,
        fetch: Callable[[], Mapping[str, Any]],
        later: Callable[[], None] | None,
        where: str,
    ) -> None:
        self._fetch, self._later, self._where = fetch, later, where
        self._gone: float | None = None  # since when nobody answers
        self.trouble, self.ended, self.begun = "", False, False
        self.status = fetch()

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


def _split(steps: Mapping[str, Any], ascii_only: bool) -> list[Text]:
    """Returns a bar for each part of a step, as a share of the median step."""
    whole = steps["seconds"]["median"]
    found = []
    for name, field in _PARTS:
        seconds = steps[field]
        if not whole or seconds is None:
            continue
        part = seconds / whole
        full = min(round(part * _BAR), _BAR)
        line = Text(f"{name:15}")
        line.append(("#" if ascii_only else "█") * full, style="magenta" if full else "")
        line.append(("." if ascii_only else "░") * (_BAR - full), style="dim")
        line.append(f" {words.share(part):>5}  {words.duration(seconds)}")
        found.append(line)
    return found


def _ranks(ranks: Sequence[Mapping[str, Any]], counters: bool) -> Table:
    heads = ["rank", "host", "state", "for", "late", "steps", "score", "cause"]
    if counters:
        heads += ["rounds", "calls", "in flight", "sent", "received", "retransmits", "round trip"]
        heads += ["memory"]
    table = _table(heads, left={"host", "state", "cause", "where"}, last="where")
    for rank in ranks:
        late = rank["late"]
        cells = [
            _text(rank["rank"]),
            _text(rank["host"]),
            _text(rank["state"]),
            _seconds(rank["for"]),
            _seconds(late["median"]),
            words.share(late["share"]),
            "" if rank["score"] is None else f"{rank['score']:.2f}",
            _text(rank["cause"]),
        ]
        if counters:
            cells += [_text(rank[name]) for name in ("rounds", "calls", "in_flight")]
            cells += [words.size(rank["bytes_sent"]), words.size(rank["bytes_received"])]
            cells += [_text(rank["retransmits"]), _seconds(rank["rtt"])]
            cells.append(words.size(rank["memory"]))
        where = "; ".join(filter(None, (rank["where"], rank["stack"])))
        table.add_row(*map(Text, [*cells, where]), style=_style(rank))
    return table


def _servers(servers: Sequence[Mapping[str, Any]]) -> Table:
    heads = ["server", "kind", "host", "state", "weight", "in flight", "sent", "received"]
    table = _table(
        [*heads, "retransmits", "round trip", "memory"],
        left={"kind", "host", "state", "cause"},
        last="cause",
    )
    for server in servers:
        cells = [_text(server[name]) for name in ("server", "kind", "host", "state")]
        cells.append("" if server["weight"] is None else f"{server['weight']:.3g}")
        cells.append(_text(server["in_flight"]))
        cells += [words.size(server["bytes_sent"]), words.size(server["bytes_received"])]
        cells += [_text(server["retransmits"]), _seconds(server["rtt"])]
        cells += [words.size(server["memory"]), _text(server["cause"])]
        table.add_row(*map(Text, cells), style=_style(server))
    return table


def _groups(groups: Sequence[Mapping[str, Any]]) -> Table:
    heads = ["group", "name", "size", "rounds", "calls", "in flight", "nothing ended for"]
    table = _table([*heads, "absent"], left={"name", "absent", "ranks"}, last="ranks")
    for group in groups:
        cells = [_text(group[name]) for name in ("group", "name", "size", "rounds", "calls")]
        cells += [_text(group["in_flight"]), _seconds(group["for"]) if group["in_flight"] else ""]
        cells += [words.listed(group["absent"]), words.listed(group["ranks"])]
        table.add_row(*map(Text, cells), style=STYLES["warn"] if group["outlier"] else "")
    return table


def _table(heads: Sequence[str], left: set[str], last: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    table.add_column(last, no_wrap=True, overflow="ellipsis")
    return table


def _cropped(table: Table, ascii_only: bool) -> Table:
    """Cuts off what is too long for its column without an ellipsis, which ASCII lacks."""
    for column in table.columns if ascii_only else ():
        column.overflow = "crop"
    return table


def _style(item: Mapping[str, Any]) -> str:
    if words.abnormal(item):
        return STYLES["bad"]
    return STYLES["warn"] if item["outlier"] or item.get("chronic") else ""


def _number(rank: Mapping[str, Any]) -> int:
    return -1 if rank["rank"] is None else int(rank["rank"])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "" if value is None else words.duration(value)
