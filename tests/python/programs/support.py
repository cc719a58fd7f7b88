"""Helpers that the programs share."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def raises(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    text: str,
    call: Callable[..., Any],
    *arguments: Any,
    **options: Any,
) -> None:
    """Asserts that the call raises `kind`, or one of several kinds, with `text` in the error."""
    try:
        call(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind} for {text}")


def until(holds: Callable[[], object]) -> None:
    """Waits until it holds. The limit only ends what hangs: no result may depend on it."""
    limit = time.monotonic() + 250
    while not holds():
        assert time.monotonic() < limit, "what this process waits for has not come"
        time.sleep(0.005)


def tell(what: str) -> None:
    """Tells the other processes of the test; FOLDER names its folder."""
    Path(os.environ["FOLDER"], what).touch()


def told(*whats: str) -> None:
    """Waits until other processes have told all of this."""
    until(lambda: all(Path(os.environ["FOLDER"], what).exists() for what in whats))


def meet_outside(rank: int, ranks: Iterable[int], where: str = "") -> None:
    """Returns once all ranks are here, so that none of them is still inside a collective.

    A rank that comes out of a collective may be ahead of others that still wait for the result. If
    it fails, leaves or dies then, they get the error there.
    """
    tell(f"met {where} {rank}")
    told(*(f"met {where} {other}" for other in ranks))


def stay_until_all_know(rank: int, others: Iterable[int]) -> None:
    """Keeps this rank until the others know, too; a rank that leaves would be news of its own."""
    tell(f"knows {rank}")
    told(*(f"knows {other}" for other in others))


def waits(where: str = "waits in ") -> bool:
    """Returns whether the program of this rank waits in a call: `where` begins its description."""
    from herring.arrays.runtime import job

    return job().activity()["where"].startswith(where)


def tell_when(holds: Callable[[], object], what: str) -> None:
    """Lets a thread tell the others once it holds."""

    def watch() -> None:
        until(holds)
        tell(what)

    threading.Thread(target=watch, daemon=True).start()


def tell_when_waiting(what: str, where: str = "waits in ") -> None:
    """Lets a thread tell the others once the program of this rank waits in a call."""
    tell_when(lambda: waits(where), what)


def interrupt_when(holds: Callable[[], object]) -> None:
    """Sends this process the signal of Ctrl-C, from a thread, once it holds."""

    def watch() -> None:
        until(holds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def has_thread(name: str, process: int | None = None) -> bool:
    """Returns whether a process, or else this one, still has a thread of Herring of this name."""
    tasks = Path(f"/proc/{process or os.getpid()}/task")
    try:
        return any((task / "comm").read_text() == f"herring-{name}\n" for task in tasks.iterdir())
    except OSError:  # A thread has just ended, or the process.
        return tasks.exists() and has_thread(name, process)


def has_rendezvous(process: int) -> bool:
    """Returns whether the process still hosts the rendezvous."""
    return has_thread("meet", process)


def is_leaving() -> bool:
    """Returns whether shutdown() has ended this rank's part; its server may stay for others."""
    return not has_thread("engine")


def is_stopped(process: int) -> bool:
    """Returns whether a signal has stopped the process."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def when_stopped(call: Callable[[], object]) -> None:
    """Stops this process; a child calls `call` meanwhile, and then lets this process go on."""
    process = os.getpid()
    if os.fork() == 0:
        os.kill(process, signal.SIGSTOP)
        until(lambda: is_stopped(process))
        call()
        os.kill(process, signal.SIGCONT)
        os._exit(0)


def server_processes() -> list[int]:
    """Returns the dedicated servers of this rank's job, the first server first.

    A forked server (nursery.py) is known by its name and its parent, the launcher. /proc tells the
    command line and the job of others.
    """
    job = f"HERRING_JOB={os.environ['HERRING_JOB']}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name, rest = (process / "stat").read_text().rsplit(")", 1)
            forked = name.endswith("(server") and int(rest.split()[1]) == os.getppid()
            started = b"server" in (process / "cmdline").read_bytes().split(b"\0")
            if forked or (started and job in (process / "environ").read_bytes()):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def server_process() -> int:
    """Returns the process of the job's first dedicated server."""
    return server_processes()[0]


def die_once(marker: Path, leave_child: bool = False, number: int = signal.SIGKILL) -> None:
    """Sends this process a signal, unless that has happened before: `marker` is made first.

    Args:
      marker: a file of the test.
      leave_child: whether a forked child outlives this process, as a data loader's may. The file
        "child" beside the marker then has its number; the test ends it.
      number: the signal.
    """
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    if leave_child:
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        marker.with_name("child").write_text(str(child))
    os.kill(os.getpid(), number)
