"""Finds the process that made a job fail; processes that fail because of it may end earlier."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence

from herring.launch.children import Child

__all__ = ["find_cause", "hint"]

# The error of a process that failed because of another one, and the process that it names.
_OF_ANOTHER = re.compile(
    r"PeerLost|HorovodInternalError|herring\.errors\.TimeoutError"
    r"|[Cc]onnection (?:closed|reset) by peer"
)
_ERROR = re.compile(r"Fatal Python error|[\w.]*(?:Error|Exception)\b")
# A colocated server has no process of its own: "server 1 (HOST:PORT, in the process of rank 1 (".
_NAMED = re.compile(r"\b(?:server \d+ \([^()]*, in the process of )?(rank|server) (\d+) \(")
_NO_HOROVOD = re.compile(r"ModuleNotFoundError: No module named 'horovod(\.|')")

#: Maps the number of a process to its last words, when they began, and whether nothing followed.
LastWords = Callable[[int], "tuple[str, float, bool]"]


def find_cause(
    first: Child, ended_at: float, children: Sequence[Child], last_words: LastWords
) -> tuple[Child, str]:
    """Finds the process that failed first.

    A process that raised an error may take a while to end, and others that fail because of it may
    end earlier. So the cause is the failed process whose traceback began first. If its error says
    that it lost another process, and that one failed too, the other one is the cause. A process
    that ended by a signal that the launcher did not send is the cause if no other failed before.
    A server without which the job was to go on is the cause only if an error names it.

    Args:
        first: The process whose failure was noticed first.
        ended_at: When it was noticed, in the time of `time.time`.
        children: All processes.
        last_words: Returns what a process said last.

    Returns:
        The process, and the end of a sentence: when it failed, and what it said last.
    """
    words = {child.task.number: last_words(child.task.number) for child in children}

    def failed(child: Child) -> bool:
        _, _, nothing_after = words[child.task.number]
        if child.spared:
            return False
        stopped = child.code in (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGKILL)
        # A process that the launcher stopped was about to end if it had just shown a traceback.
        return child is first or (child.code != 0 and (not stopped or nothing_after))

    def order(child: Child) -> tuple[bool, float, bool]:
        text, at, _ = words[child.task.number]
        late = not text or (child is not first and at > ended_at)
        return bool(_OF_ANOTHER.search(text)) or late, at if text else ended_at, child is not first

    def failed_at(child: Child) -> float:
        text, at, nothing_after = words[child.task.number]
        return at if text and (nothing_after or _ERROR.match(text)) else child.ended_at

    def before(child: Child, other: Child) -> bool:
        """Returns whether the child failed by itself before the other one ended."""
        by_itself = failed(child) and not _OF_ANOTHER.search(words[child.task.number][0])
        return child is not other and by_itself and failed_at(child) < other.ended_at

    ends = [child for child in children if child.killed and not child.spared]
    killed = min(ends, key=lambda child: child.ended_at, default=None)
    if killed is not None and not any(before(c, killed) for c in children):
        moment = time.strftime("%H:%M:%S", time.localtime(killed.ended_at))
        text, _, nothing_after = words[killed.task.number]
        if not text or not nothing_after:  # a traceback at the end says enough alone
            how = f"it {killed.how_ended}"
            text = f"{how}; its last line was: {text}" if text else how
        return killed, f"at {moment}: {text}"
    found = min((child for child in children if failed(child)), key=order)
    seen = {found.task.number}
    while True:
        text, at, _ = words[found.task.number]
        named = _NAMED.search(text) if _OF_ANOTHER.search(text) else None
        name = f"{named.group(1)} {named.group(2)}" if named else ""
        # A server may have had successors of its name, which end because of the failure.
        others = [each for each in children if each.task.name == name and each.code]
        other = max(others, key=lambda each: (each.killed, each.task.number), default=found)
        if other.task.number in seen:
            break
        if other.code == -signal.SIGTERM and not words[other.task.number][0]:
            break  # the other process left the job, or was stopped
        found = other
        seen.add(other.task.number)
    moment = time.strftime("%H:%M:%S", time.localtime(at if text else ended_at))
    how = found.how_ended
    if found.code == -signal.SIGKILL and not found.killed:
        how = "did not answer the others, nor end before the launcher killed it"
    return found, f"at {moment}: {text or 'it ' + how}"


def hint(text: str) -> str:
    """Returns what to do about an error that an option can help with, or an empty string."""
    if _NO_HOROVOD.search(text):
        return "with 'herring run --horovod' the script's 'import horovod' finds herring.horovod"
    return ""
