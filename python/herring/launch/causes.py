"""Finds the process that made a job fail; processes that fail because of it may end earlier."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from herring.launch.children import Child
from herring.launch.tracebacks import LastWords

# Errors of a process that failed because of another one: of Herring, of torch's stores and of other
# libraries that connect processes.
_OF_ANOTHER = re.compile(
    r"PeerLost|HorovodInternalError|herring\.errors\.TimeoutError"
    r"|DistNetworkError|DistStoreError|ncclRemoteError|remote process exited"
    r"|[Cc]onnection (?:closed|reset) by peer"
)
# A colocated server has no process of its own: "server 1 (HOST:PORT, in the process of rank 1 (".
_NAMED = re.compile(r"\b(?:server \d+ \([^()]*, in the process of )?(rank|server) (\d+) \(")
_NO_HOROVOD = re.compile(r"ModuleNotFoundError: No module named 'horovod(\.|')")


@dataclass(frozen=True)
class _Failure:
    """How one process failed."""

    child: Child  # the process
    at: float  # when it failed (`time.time`): when its traceback began, or when it ended
    by_itself: bool  # whether it did not fail because of another process


def find_cause(
    first: Child, children: Sequence[Child], last_words: Callable[[int], LastWords]
) -> tuple[Child, str]:
    """Finds the process that failed first by itself.

    A process that raised an exception may take a while to end, and others that fail because of it
    may end earlier. So a process failed when its last traceback began, if that ended the process;
    otherwise when it ended. One that failed because of another, or because the launcher stopped it,
    did not fail by itself. If none did, the cause is the first one that failed, or the process that
    its error names, if that one failed, too. A server without which the job was to go on is the
    cause only if an error names it.

    Returns:
        The process, and the end of a sentence: when it failed and how, with what it said last.
    """
    words = {child.task.number: last_words(child.task.number) for child in children}
    judged = (_judge(child, words[child.task.number]) for child in children)
    failures = {each.child.task.number: each for each in judged if each is not None}
    by_themselves = [each for each in failures.values() if each.by_itself]
    if by_themselves:
        found = min(by_themselves, key=lambda each: (each.at, each.child is not first))
    else:
        found = min(failures.values(), key=lambda each: each.at, default=_at_its_end(first))
        found = _follow(found, failures, children, words)
    moment = time.strftime("%H:%M:%S", time.localtime(found.at))
    return found.child, f"at {moment}: {_how(found.child, words[found.child.task.number])}"


def _judge(child: Child, words: LastWords) -> _Failure | None:
    """Returns how a process failed, or None if it did not, or only because it was stopped."""
    if not child.code or child.spared:
        return None
    if _ended_with_error(child, words):
        if words.error_at >= child.stopped_at:
            return None
        at = words.error_at if words.ends_with_error else max(words.error_at, words.line_at)
        return _Failure(child, at, not any(map(_OF_ANOTHER.search, words.errors)))
    if child.ended_at > child.stopped_at:
        return None
    # A server may end with a status of its own because its job has failed.
    return _Failure(child, child.ended_at, not child.is_server or child.code < 0)


def _ended_with_error(child: Child, words: LastWords) -> bool:
    """Returns whether the last exception that a process showed is the one that ended it.

    Lines of functions at exit may follow that exception; Python's status then is 1.
    """
    stopped = child.ended_at > child.stopped_at
    return bool(words.error) and (words.ends_with_error or (child.code == 1 and not stopped))


def _at_its_end(child: Child) -> _Failure:
    return _Failure(child, child.ended_at, by_itself=False)


def _follow(
    found: _Failure,
    failures: dict[int, _Failure],
    children: Sequence[Child],
    words: dict[int, LastWords],
) -> _Failure:
    """Goes from a process to the one that its error names, and so on."""
    path = [found]
    while True:
        text = words[path[-1].child.task.number].error
        names = _NAMED.findall(text) if _OF_ANOTHER.search(text) else []
        others = (_named(" ".join(name), failures, children) for name in names)
        other = next((each for each in others if each is not None), None)
        if other is None:
            return path[-1]
        if other in path:  # they name each other: the later error follows from the earlier one
            return min(path[path.index(other) :], key=lambda each: each.at)
        path.append(other)


def _named(name: str, failures: dict[int, _Failure], children: Sequence[Child]) -> _Failure | None:
    """Returns how the process with this name failed; None if it left the job or was stopped."""
    # A server may have had successors of its name, which end because of the failure.
    others = [child for child in children if child.task.name == name and child.code]
    other = max(others, key=lambda each: (each.killed, each.task.number), default=None)
    if other is None:
        return None
    if other.task.number in failures:
        return failures[other.task.number]
    return _at_its_end(other) if other.spared or _did_not_answer(other) else None


def _did_not_answer(child: Child) -> bool:
    """Returns whether the launcher had to kill a process that SIGTERM did not end."""
    return child.code == -signal.SIGKILL and not child.killed


def _how(child: Child, words: LastWords) -> str:
    if _did_not_answer(child):
        return "it did not answer the others, nor end before the launcher killed it"
    how = f"it {child.how_ended}"
    # Python exits with 1 after an exception; any other status is the program's own choice.
    if _ended_with_error(child, words) and child.code <= 1 and child.code != -signal.SIGKILL:
        more = words.line and not words.ends_with_error
        return f"{words.error}; its last line was: {words.line}" if more else words.error
    if words.error:
        return f"{how}; the last exception that it showed was: {words.error}"
    return f"{how}; its last line was: {words.line}" if words.line else how


def hint(text: str) -> str:
    """Returns what to do about an error that an option can help with, or an empty string."""
    if _NO_HOROVOD.search(text):
        return "with 'herring run --horovod' the script's 'import horovod' finds herring.horovod"
    return ""
